"""An alarm: one call at a time that can be brought forward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from celery_throttle.worker.hooks.timers import Timers


class Alarm:
    """Calls a function once, at the earliest of the times set since its last call. Thread-safe."""

    def __init__(self, timers: Timers, function: Callable[[], None]) -> None:
        self._timers = timers
        self._function = function
        self._entry: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def set(self, seconds: float) -> None:
        """Call the function after some seconds, unless it is set to an earlier time."""
        seconds = max(0.0, seconds)
        at = time.monotonic() + seconds
        with self._lock:
            if self._entry is not None:
                if self._at <= at:
                    return
                self._timers.cancel(self._entry)
            self._at = at
            self._entry = self._timers.call_after(seconds, self._ring)

    def _ring(self) -> None:
        with self._lock:
            self._entry = None
        self._function()

    def cancel(self) -> None:
        """Make no call until the alarm is set again."""
        with self._lock:
            if self._entry is not None:
                self._timers.cancel(self._entry)
                self._entry = None
