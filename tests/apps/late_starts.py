"""A worker whose loop stands still once, between the claim of a task and its start."""

from __future__ import annotations

import os
import time

import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.worker.claim import ClaimedTask
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS

app = Celery("late_starts", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="late_starts",
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"hourly": "1/h"}, lease=300)

_dispatch = Dispatcher.dispatch
_is_late = True


def dispatch_late(self: Dispatcher, task: ClaimedTask) -> None:
    """Let the start of the first task pass."""
    global _is_late  # once in a worker
    was_late, _is_late = _is_late, False
    _dispatch(self, task._replace(starts_in=0.001) if was_late else task)
    until = time.monotonic() + 10 * BOOKING_HORIZON_SECONDS
    while was_late and time.monotonic() < until:
        pass  # a greenlet that sleeps lets the others run


Dispatcher.dispatch = dispatch_late  # type: ignore[method-assign]  # stands still, and goes on


@app.task(throttle="hourly")
def hourly(number: int) -> None:
    redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]).rpush("starts", number)
