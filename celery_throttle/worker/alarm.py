"""A call at a certain time: one, however often it is set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_throttle.worker.timers import Timers


class Alarm:
    """Calls once, at the earliest of the times it was set to since it last did.

    Args:
        timers: of the worker; they make the call.
        call: what to call.
    """

    def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
        self._timers = timers
        self._call = call
        self._entry: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def set(self, seconds: float) -> None:
        """Call after some seconds, or earlier if that is set already. From any thread."""
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
        self._call()

    def cancel(self) -> None:
        """Call no more, until it is set again."""
        with self._lock:
            if self._entry is not None:
                self._timers.cancel(self._entry)
                self._entry = None
