"""How much of a worker's loop may be spent on waiting for the server of the limits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_throttle.worker.alarm import Alarm

if TYPE_CHECKING:
    from celery_throttle.worker.timers import Timers

#: Seconds of one call above which the server is slow.
SLOW = 0.010


class Pace:
    """After a slow call as much time as it took belongs to all other work.

    So however slow the server is, tasks without limits have about half of the loop. What is to be
    asked meanwhile has its turn in the order in which it came.

    Args:
        timers: of the worker; they bring the turns.
    """

    def __init__(self, timers: Timers) -> None:
        self._until = 0.0
        self._turns: deque[Callable[[], None]] = deque()
        self._alarm = Alarm(timers, self._next)

    def spent(self, began: float) -> None:
        """Calls were made since a monotonic time."""
        now = time.monotonic()
        took = now - began
        if took > SLOW:
            self._until = max(now, self._until + took) + took

    def rests(self) -> bool:
        """Whether no call is to be made now, save in turn."""
        return bool(self._turns) or self._rest() > 0

    def in_turn(self, ask: Callable[[], None]) -> None:
        """Call what makes calls to the server: now, or once when its turn comes."""
        if ask in self._turns:
            return
        if not self.rests():
            ask()
            return
        self._turns.append(ask)
        self._alarm.set(self._rest())

    def stop(self) -> None:
        """Forget who has a turn."""
        self._turns.clear()
        self._alarm.cancel()

    def _rest(self) -> float:
        return max(0.0, self._until - time.monotonic()) if self._until else 0.0

    def _next(self) -> None:
        try:
            if self._turns and not self._rest():
                self._turns.popleft()()
        finally:
            if self._turns:
                self._alarm.set(self._rest())
