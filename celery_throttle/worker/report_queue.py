"""Reports that wait for a call to the server; each may be repeated without harm."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

T = TypeVar("T")


class ReportQueue(deque[T]):
    """Reports to make with the next call. Thread-safe.

    The reports of recent calls are remembered: a replica that takes the server's place may have
    missed them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recent: set[T] = set()
        self._older: set[T] = set()

    def take(self) -> list[T]:
        """Return the reports to make now. If the call fails, they must be added again."""
        reports = [self.popleft() for _ in range(len(self))]
        self._recent.update(reports)
        return reports

    def remembered(self) -> set[T]:
        """Return the reports of recent calls."""
        return self._older | self._recent

    def repeat(self) -> None:
        """Add the reports of recent calls once more."""
        self.extend(self.remembered())

    def forget(self) -> None:
        """Forget what was reported before the last call of this method."""
        self._older, self._recent = self._recent, set()
