"""Reports that wait for a call to the server; each may be repeated without harm."""

from __future__ import annotations

import time
from collections import deque
from typing import TypeVar

from celery_throttle.worker import tuning

T = TypeVar("T")


class ReportQueue(deque[T]):
    """Reports to make with the next call. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[tuple[float, T]] = deque()

    def take(self) -> list[T]:
        """Return the reports to make now. If the call fails, they must be added again."""
        reports = [self.popleft() for _ in range(len(self))]
        now = time.monotonic()
        while self._recent and self._recent[0][0] < now - tuning.RECENT_REPORTS_SECONDS:
            self._recent.popleft()
        self._recent.extend((now, report) for report in reports)
        return reports

    def repeat(self) -> None:
        """Add the recent reports once more: a replica of the server may have missed them."""
        since = time.monotonic() - tuning.RECENT_REPORTS_SECONDS
        self.extend(report for at, report in list(self._recent) if at >= since)
