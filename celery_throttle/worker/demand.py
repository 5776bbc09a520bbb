"""Counts of recent tasks, by which a worker takes units ahead and claims ahead."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from celery_throttle.worker import tuning


class Demand:
    """Counts how often each limit was passed in the last 20 ms; so many units are taken ahead."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, int, int]] = {}

    def count(self, keys: Iterable[Hashable], now: float) -> None:
        """Count one more task for each of some keys."""
        if len(self._counts) > tuning.DEMAND_CACHE_SIZE:
            self._counts.clear()
        for key in keys:
            self._counts[key] = self._counts_with(key, now)

    def _counts_with(self, key: Hashable, now: float) -> tuple[float, int, int]:
        began, before, current = self._counts.get(key, (now, 0, 0))
        age = now - began
        if age > tuning.BOOKING_HORIZON_SECONDS:
            before = current if age < 2 * tuning.BOOKING_HORIZON_SECONDS else 0
            current, began = 0, now
        return began, before, current + 1

    def recent_with(self, key: Hashable, now: float) -> int:
        """Return what :meth:`recent` would return if one more task was counted now."""
        return max(self._counts_with(key, now)[1:])

    def recent(self, key: Hashable, now: float) -> int:
        """Return how many tasks were counted in the last 20 ms."""
        began, before, current = self._counts.get(key, (now, 0, 0))
        return max(before, current) if now - began <= 2 * tuning.BOOKING_HORIZON_SECONDS else 0


class RunTimes:
    """The tasks that run in this worker's processes, and how long those before them took."""

    def __init__(self) -> None:
        self.running = 0  #: tasks that have begun, and not ended
        #: The longest time (s) of a recent task: shorter ones reduce it by a tenth each.
        self._longest = tuning.SOON_FREE_SECONDS

    def begin(self) -> None:
        """Record that a task begins."""
        self.running += 1

    def end(self, seconds: float) -> None:
        """Record that a task has ended, after some seconds."""
        self.running -= 1
        self._longest = max(seconds, 0.9 * self._longest)

    def are_short(self) -> bool:
        """Return whether the processes of these tasks will probably be free within 5 ms."""
        return self._longest < tuning.SOON_FREE_SECONDS
