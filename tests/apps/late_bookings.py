"""A worker whose loop stands still once, between the decision about a task and its start."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.worker.admission.booking import Booking
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.task_state import Status
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS

app = Celery("late_bookings", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="late_bookings",
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"hourly": "1/h"}, lease=300)

_conclude_all = Gate._conclude_all
_is_late = True


def defer(self: Booking, request: Any, *_: Any, **__: Any) -> Status:
    """Let the next round decide, as while the server is slow."""
    return self.defer(request)


def conclude_late(self: Gate, requests: Sequence[Any], results: Sequence[Any]) -> None:
    """Let the start of the first task pass."""
    global _is_late  # once in a worker
    was_late, _is_late = _is_late, False
    until = time.monotonic() + 10 * BOOKING_HORIZON_SECONDS
    while was_late and time.monotonic() < until:
        pass  # a greenlet that sleeps lets the others run
    _conclude_all(self, requests, results)


Booking.book = defer  # type: ignore[method-assign]
Gate._conclude_all = conclude_late  # type: ignore[method-assign]  # stands still, and goes on


@app.task(throttle="hourly")
def hourly(number: int) -> None:
    redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]).rpush("starts", number)
