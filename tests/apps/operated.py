"""An app for the commands of operators; its limits let nothing through for long."""

from __future__ import annotations

import time

import redis
from celery import Celery

from celery_throttle import Throttle

LIMITS = {"api": "50/s", "mail": "20/m", "day": "100/day burst 100", "slots": "3 at once"}


def make_app(url: str | None = None) -> Celery:
    """Return a new app; without a URL, Celery reads the broker's from the environment."""
    app = Celery("operated", broker=url, backend=url, set_as_current=False)
    app.conf.throttle_routes = {"send": ["mail:{tenant}", "api"]}
    Throttle(app, LIMITS, timeout=30)  # a busy machine may keep a server from replying

    @app.task(name="send", shared=False, lazy=False)
    def send(tenant: str, number: int) -> None: ...

    @app.task(name="plain", shared=False, lazy=False)
    def plain() -> None: ...

    return app


def add_worker(app: Celery) -> None:
    """Let a worker be alive for an hour, which takes nothing."""
    throttle: Throttle = app.throttle  # type: ignore[attr-defined]  # Celery's stubs do not know it
    with redis.Redis.from_url(throttle.settings.url) as client:
        client.zadd(throttle.keys.membership, {"worker": (time.time() + 3600) * 1e6})
        client.expire(throttle.keys.membership, 3600)


app = make_app()
