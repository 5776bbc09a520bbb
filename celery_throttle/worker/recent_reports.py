"""Recent reports to the server: a replica that takes its place may have missed them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from celery_throttle.worker import tuning

T = TypeVar("T")


class RecentReports(Generic[T]):
    """Remembers reports for ten seconds; each may be repeated without harm."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, T]] = deque()

    def add(self, reports: Iterable[T]) -> None:
        """Add reports that are made now."""
        now = time.monotonic()
        while self._reports and self._reports[0][0] < now - tuning.RECENT_REPORTS_SECONDS:
            self._reports.popleft()
        self._reports.extend((now, report) for report in reports)

    def recent(self) -> list[T]:
        """Return the reports of the last ten seconds."""
        since = time.monotonic() - tuning.RECENT_REPORTS_SECONDS
        return [report for at, report in list(self._reports) if at >= since]
