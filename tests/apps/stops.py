"""Tasks for workers that are stopped, grown and shrunk: each writes down its start and its end."""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

app = Celery("stops", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ.get("QUEUE", "stops"),
    broker_connection_retry_on_startup=True,
    worker_pool_restarts=True,
    worker_soft_shutdown_timeout=float(os.environ.get("SOFT", "0")),
)
LIMITS = {
    "api": "50/s",
    "open": "100000/s burst 1000",
    "quota": "1/h burst 100",
    "two": "2 at once",
    "nine": "9 at once",
}
# The lease is long: a claim that nobody gave back shows as a task that does not come.
throttle = Throttle(
    app,
    LIMITS,
    url=os.environ.get("THROTTLE_URL"),
    lease=300,
)


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["THROTTLE_URL"])


def note(kind: str, number: int) -> None:
    _store().rpush("stops-notes", f"{kind} {number} {time.time()}")


def hold(number: int, seconds: float) -> None:
    """Take some seconds, or less if the task is told to end."""
    note("begin", number)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not _store().exists(f"stops-end:{number}"):
        time.sleep(0.02)
    note("end", number)


def define(name: str, **options: Any) -> Any:
    @app.task(name=f"stops.{name}", **options)
    def task(number: int, seconds: float = 0.0) -> None:
        hold(number, seconds)

    return task


plain = define("plain")
plain_late = define("plain_late", acks_late=True)
early = define("early", throttle="open")
late = define("late", throttle="open", acks_late=True)
api = define("api", throttle="api")
hourly = define("hourly", throttle="quota")
slot = define("slot", throttle="two")
slot_late = define("slot_late", throttle="two", acks_late=True)
slot_of_nine = define("slot_of_nine", throttle="nine")
