"""How much of a worker's loop may be spent on waiting for the server of the limits."""

from __future__ import annotations

import time

#: Seconds of one call above which the server is slow.
SLOW = 0.010


class Pace:
    """After a slow call as much time as it took belongs to all other work.

    So however slow the server is, tasks without limits have half of the loop at least.
    """

    def __init__(self) -> None:
        self._until = 0.0

    def spent(self, began: float) -> None:
        """Calls were made since a monotonic time."""
        now = time.monotonic()
        if now - began > SLOW:
            self._until = now + (now - began)

    def rest(self) -> float:
        """Seconds until the next call."""
        return max(0.0, self._until - time.monotonic()) if self._until else 0.0
