"""The circuit breaker: stops calls to a server that does not answer.

Each call would block its thread, or its worker, for the timeout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery_throttle.errors import StoreUnavailableError

#: Seconds between two calls that test whether the server is back, without a watcher.
RETRY_SECONDS = 1.0


class CircuitBreaker:
    """The circuit breaker of one store. A call without an answer opens it, one with it closes it.

    A broken connection does not open it: the next call makes a new connection.
    """

    __slots__ = ("_message", "_pid", "_retry_at", "is_open", "watcher")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.is_open = False
        #: Called with each error that opens the breaker. It tests when the server is back, so that
        #: no other call waits for a timeout. None: one call per second tests it.
        self.watcher: Callable[[StoreUnavailableError], None] | None = None
        self._retry_at = 0.0
        self._message = ""
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise StoreUnavailableError, except once per second if there is no watcher."""
        if self._pid != os.getpid():  # after a fork: the watcher is in the parent
            self._begin()
            return
        now = time.monotonic()
        if self.watcher or now < self._retry_at:
            raise StoreUnavailableError(self._message)
        self._retry_at = now + RETRY_SECONDS

    def trip(self, error: StoreUnavailableError) -> None:
        """Open the breaker: a call got no answer."""
        if self._pid != os.getpid():
            self._begin()
        self.is_open = True
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._message = str(error)
        if self.watcher:
            self.watcher(error)

    def close(self) -> None:
        """Close the breaker: a call got its answer."""
        self.is_open = False
