"""Queues that are bound to exchanges in every way that kombu knows."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue, binding

from celery_throttle import Throttle

STORE = os.environ.get("THROTTLE_URL") or os.environ.get("CELERY_BROKER_URL", "redis://localhost")

topic = Exchange("topic", "topic")
direct = Exchange("direct", "direct")

#: By their names.
QUEUES = {
    "a": Queue("a", topic, "a.#"),
    "b": Queue("b", topic, "b.#"),
    "several": Queue("several", bindings=[binding(topic, "c.*"), binding(direct, "d")]),
    "more": Queue("more", direct, "e"),
    "first": Queue("first", topic, "both.#"),
    "second": Queue("second", topic, "#.both"),
}


def make_app(broker: str | None) -> Celery:
    """The app with a broker."""
    app = Celery("routes", broker=broker, set_as_current=False)
    app.conf.update(
        throttle_url=STORE,
        task_queues=list(QUEUES.values()),
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        task_create_missing_queues=False,
        task_default_queue="a",
    )
    return app


app = make_app(os.environ.get("CELERY_BROKER_URL"))
throttle = Throttle(app, {"api": "100/s", "inner": "100/s"}, lease=2)


@app.task(bind=True, name="call", throttle="api", shared=False)
def call(self: Any, queue: str) -> None:
    with redis.Redis.from_url(STORE) as client:
        client.rpush("ran", f"{queue} {self.request.hostname.partition('@')[0]}")


@app.task(name="meet", throttle="api", shared=False)
def meet() -> None:
    """Meets a limit in its body, and goes back to a line."""
    throttle["inner"].acquire(max_wait=0)
