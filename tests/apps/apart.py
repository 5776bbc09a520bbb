"""One of several apps whose queues and tasks have the same names."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

STORE = os.environ.get("THROTTLE_URL", "redis://localhost")


def make_app(broker: str | None, prefix: str = "", **settings: Any) -> Celery:
    """The app with a broker, and with a prefix of the broker's keys."""
    app = Celery("apart", broker=broker, set_as_current=False)
    app.conf.update(
        throttle_url=STORE,
        broker_transport_options={"global_keyprefix": prefix} if prefix else {},
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        **settings,
    )
    return app


app = make_app(os.environ.get("CELERY_BROKER_URL"), os.environ.get("APART_PREFIX", ""))
throttle = Throttle(app, {"api": "100/s"}, prefix=os.environ.get("APART_LIMITS"), lease=2)


@app.task(name="call", throttle="api", shared=False)
def call(number: int) -> None:
    with redis.Redis.from_url(STORE) as client:
        client.rpush(f"ran-by:{os.environ['APART_NAME']}", number)
