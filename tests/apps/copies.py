"""Queues that the broker deletes with their consumers, and one that it keeps."""

from __future__ import annotations

import os

import redis
from celery import Celery
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_throttle import Throttle

STORE = os.environ.get("THROTTLE_URL") or os.environ.get("CELERY_BROKER_URL", "redis://localhost")
LEASE = 1.0

#: By their names, but for the copies, of which each worker has one of its own.
QUEUES = {
    "copies": Broadcast("copies", routing_key="copies"),
    "brief": Queue("brief", Exchange("brief"), "brief", auto_delete=True, durable=False),
    "own": Queue("own", Exchange("own"), "own", exclusive=True, durable=False),
    "kept": Queue("kept", Exchange("kept"), "kept"),
}


def make_app(broker: str | None) -> Celery:
    """The app with a broker."""
    app = Celery("copies", broker=broker, set_as_current=False)
    app.conf.update(
        throttle_url=STORE,
        task_queues=list(QUEUES.values()),
        task_default_queue="kept",
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
    )
    return app


app = make_app(os.environ.get("CELERY_BROKER_URL"))
throttle = Throttle(app, {"api": "100/s"}, lease=LEASE)


@app.task(name="call", throttle="api", shared=False)
def call(number: int) -> None:
    with redis.Redis.from_url(STORE) as client:
        client.rpush("ran", number)
