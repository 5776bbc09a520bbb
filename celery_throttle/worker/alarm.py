"""A call at a certain time: one, however often it is set."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Alarm:
    """Calls once, at the earliest of the times it was set to since it last did.

    Args:
        consumer: Celery's; its timer makes the call.
        call: what to call.
    """

    def __init__(self, consumer: Any, call: Callable[[], None]) -> None:
        self._c = consumer
        self._call = call
        self._entry: Any = None
        self._at = 0.0
        self._lock = threading.Lock()

    def set(self, seconds: float) -> None:
        """Call after some seconds, or earlier if that is set already."""
        seconds = max(0.0, seconds)
        at = time.monotonic() + seconds
        with self._lock:
            if self._entry is not None:
                if self._at <= at:
                    return
                self._c.timer.cancel(self._entry)
            self._at = at
            self._entry = self._c.timer.call_after(seconds, self._ring)

    def set_from_elsewhere(self, seconds: float) -> None:
        """:meth:`set`, from any thread: the timer of an event loop belongs to its thread."""
        if self._entry is not None:
            return
        if self._c.hub is not None:
            self._c.hub.call_soon(self.set, seconds)
        else:
            self.set(seconds)

    def _ring(self) -> None:
        with self._lock:
            self._entry = None
        self._call()

    def cancel(self) -> None:
        """Call no more, until it is set again."""
        with self._lock:
            if self._entry is not None:
                self._c.timer.cancel(self._entry)
                self._entry = None
