"""An app with tasks for fan-outs, on the embedded server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_throttle import Throttle

MakeApp = Callable[..., Any]

LIMITS = {"api": "1/h", "mail": "1/h", "few": "1/h max-waiting 3", "keys": "1/h max-keys 2"}


@pytest.fixture
def make_app(redis_url: str) -> Iterator[MakeApp]:
    made: list[Any] = []

    def make(**conf: Any) -> Any:
        app = Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False)
        app.conf.update(conf)
        made.append(app)
        Throttle(app, LIMITS)

        @app.task(name="one", throttle="api", shared=False, lazy=False)
        def one(*args: Any, **kwargs: Any) -> None: ...

        @app.task(name="tenant", throttle=["api", "mail:{who}"], shared=False, lazy=False)
        def tenant(who: str, *, text: str = "") -> None: ...

        @app.task(name="costly", throttle="api", throttle_cost="{cost}", shared=False, lazy=False)
        def costly(cost: float) -> None: ...

        @app.task(name="few", throttle="few", shared=False, lazy=False)
        def few(number: int) -> None: ...

        @app.task(name="shared", throttle=["few", "mail:{who}"], shared=False, lazy=False)
        def shared(who: str) -> None: ...

        @app.task(name="keys", throttle="keys:{key}", shared=False, lazy=False)
        def keys(key: str) -> None: ...

        @app.task(name="free", shared=False, lazy=False)
        def free() -> None: ...

        return app

    yield make
    for app in made:
        app.throttle.store.close()
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app()
