"""Limits the share of the worker's loop that waits for a slow server."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.timers import Alarm, Timers


class Backoff:
    """Rests after each slow call to the server for as long as that call took, at most 5 s.

    However slow the server is, tasks without limits have about half of the loop. Functions that
    call the server during a rest are queued, and run one by one in the order in which they came.
    """

    def __init__(self, timers: Timers) -> None:
        self._rest_until = 0.0
        self._queue: deque[Callable[[], None]] = deque()
        self._alarm = Alarm(timers, self._run_next)

    def record_calls(self, began: float) -> None:
        """Record that calls were made, from a monotonic time until now."""
        now = time.monotonic()
        took = min(now - began, tuning.MAX_REST_SECONDS)
        if took > tuning.SLOW_CALL_SECONDS:
            self._rest_until = max(now, self._rest_until + took) + took

    def is_resting(self) -> bool:
        """Return whether no call should be made now, except by queued functions."""
        return bool(self._queue) or self._rest_until > time.monotonic()

    def run_or_queue(self, function: Callable[[], None]) -> None:
        """Run a function that calls the server: now, or once after those queued before it."""
        if function in self._queue:
            return
        if not self.is_resting():
            function()
            return
        self._queue.append(function)
        self._alarm.set(self._remaining())

    def clear(self) -> None:
        """Drop the queued functions."""
        self._queue.clear()
        self._alarm.cancel()

    def _remaining(self) -> float:
        """Return the seconds of rest that are left."""
        return max(0.0, self._rest_until - time.monotonic())

    def _run_next(self) -> None:
        try:
            if self._queue and not self._remaining():
                self._queue.popleft()()
        finally:
            if self._queue:
                self._alarm.set(self._remaining())
