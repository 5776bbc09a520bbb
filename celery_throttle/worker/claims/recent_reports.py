"""What the server was told of late: one that takes its place after a failure may not know it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

#: Seconds for which it is remembered: more than a replica lags behind.
REMEMBER = 10.0


class Told(Generic[T]):
    """Facts that may be told twice without harm."""

    def __init__(self) -> None:
        self._facts: deque[tuple[float, T]] = deque()

    def add(self, facts: Iterable[T]) -> None:
        """These are told now."""
        now = time.monotonic()
        while self._facts and self._facts[0][0] < now - REMEMBER:
            self._facts.popleft()
        self._facts.extend((now, fact) for fact in facts)

    def recent(self) -> list[T]:
        """Those of the last ten seconds."""
        since = time.monotonic() - REMEMBER
        return [fact for at, fact in list(self._facts) if at >= since]
