"""A worker whose loop stands still once, between the units of a task and its start.

``LATE`` says where it got the units: with a ``claim``, or at the gate, with a ``booking``.
"""

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
from celery_throttle.worker.claim import ClaimedTask
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.task_state import Status
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS

app = Celery("late_starts", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="late_starts",
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"hourly": "1/h"}, lease=300)

_dispatch = Dispatcher.dispatch
_conclude_all = Gate._conclude_all
_is_late = True


def dispatch_late(self: Dispatcher, task: ClaimedTask) -> None:
    """Let the start of the first claimed task pass."""
    _dispatch(self, task._replace(starts_in=0.001) if _is_late else task)
    stand_still()


def defer(self: Booking, request: Any, *_: Any, **__: Any) -> Status:
    """Let the next round decide, as while the server is slow."""
    return self.defer(request)


def conclude_late(self: Gate, requests: Sequence[Any], results: Sequence[Any]) -> None:
    """Let the start of the first booked task pass."""
    if Status.BOOKED in results:  # a new worker may not have a process yet
        stand_still()
    _conclude_all(self, requests, results)


def stand_still() -> None:
    global _is_late  # once in a worker
    was_late, _is_late = _is_late, False
    until = time.monotonic() + 10 * BOOKING_HORIZON_SECONDS
    while was_late and time.monotonic() < until:
        pass  # a greenlet that sleeps lets the others run


if os.environ.get("LATE") == "claim":
    Dispatcher.dispatch = dispatch_late  # type: ignore[method-assign]  # and goes on
elif os.environ.get("LATE") == "booking":
    Booking.book = defer  # type: ignore[method-assign]
    Gate._conclude_all = conclude_late  # type: ignore[method-assign]  # and goes on


@app.task(throttle="hourly")
def hourly(number: int) -> None:
    redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]).rpush("starts", number)
