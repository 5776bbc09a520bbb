"""An app whose workers are traced as in ``examples/tracing.py``."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task

from celery_throttle import Throttle

LIMITS = {"api": "10/s", "body": "10/s", "tenant": "10/s"}


def make_app(url: str | None) -> Any:
    """Return the app with a server for everything."""
    app: Any = Celery("traced", broker=url, backend=url, set_as_current=False)
    # Only workers connect its receivers: in the process of the tests, they would trace the workers
    # that other tests start in it.
    app.conf.include = ["examples.tracing"]
    app.conf.throttle_waiting = os.environ.get("TRACED_WAITING")
    # A message that waits at the broker goes back to its queue after half of that.
    app.conf.broker_transport_options = {"visibility_timeout": 2}
    Throttle(app, LIMITS)

    @app.task(name="call", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def call(*_: Any) -> None: ...

    @app.task(name="mail", throttle="tenant:{tenant}", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def mail(tenant: str) -> None: ...

    @app.task(name="retry", bind=True, throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def retry(self: Task) -> None:
        if not self.request.retries:
            app.throttle["api"].pause(3600)
            raise self.retry(countdown=0)

    @app.task(name="call in body", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
    def call_in_body() -> None:
        app.throttle["body"].acquire(max_wait=0)

    return app


app = make_app(os.environ.get("CELERY_BROKER_URL"))
