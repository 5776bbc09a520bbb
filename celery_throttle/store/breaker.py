"""The circuit breaker: keeps calls from a server that does not answer.

Each of them would wait for its timeout, and whoever waits does nothing else meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery_throttle.errors import StoreUnavailableError

#: Seconds after which a call tries again, if nobody else does.
PAUSE = 1.0


class Breaker:
    """Of one store. It is open from a call that got no answer until one that did.

    A connection that is cut does not open it: the next call makes a new one.

    Attributes:
        is_open: whether the server is taken not to answer.
        watcher: called with each error that opens it; finds out for all others when the server is
            back, so that none of them waits for a timeout. None: they find out by themselves.
    """

    __slots__ = ("_pid", "_until", "_why", "is_open", "watcher")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.is_open = False
        self.watcher: Callable[[StoreUnavailableError], None] | None = None
        self._until = 0.0
        self._why = ""
        self._pid = os.getpid()

    def check(self) -> None:
        """While it is open, let one call a second pass; none, if somebody watches.

        Raises:
            StoreUnavailableError: this call is not to be made.
        """
        if self._pid != os.getpid():  # the watcher is not in this process, nor are its connections
            self._begin()
            return
        now = time.monotonic()
        if self.watcher or now < self._until:
            raise StoreUnavailableError(self._why)
        self._until = now + PAUSE

    def trip(self, error: StoreUnavailableError) -> None:
        """A call got no answer."""
        if self._pid != os.getpid():
            self._begin()
        self.is_open = True
        self._until = time.monotonic() + PAUSE
        self._why = str(error)
        if self.watcher:
            self.watcher(error)

    def close(self) -> None:
        """A call got its answer."""
        self.is_open = False
