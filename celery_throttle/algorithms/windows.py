"""Algorithms that count in windows. Twins: ``fixed_window.lua``, ``sliding_window.lua``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_throttle.algorithms.state import Mark, State, divided_up, free
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate


@dataclass(frozen=True, slots=True)
class FixedWindow(State):
    """One count, from the beginning of a window to its end.

    A slot may be booked in the next window, up to 20 ms before it begins. From then on the window
    before it admits nothing.

    Attributes:
        start, stop: the window; ``start == stop`` before the first request.
        count: what was taken in it.
        began: when the first of it was taken.
    """

    start: int
    stop: int
    count: int
    began: int

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> FixedWindow:
        return cls(since, 0, 0, 0, 0)

    def written(self) -> int:
        return self.start

    def moved_back(self, limit: Limit, now: int) -> FixedWindow:
        """It begins now, and ends when it would have, but with the next one at the latest."""
        _, stop = _window(limit, now)
        _, next_stop = _window(limit, stop)
        return replace(self, start=now, stop=min(self.stop, next_stop))

    def in_use(self, at: int) -> int:
        return self.count if at < self.stop else 0

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        if now >= self.stop:
            return 0
        if self.count + cost <= limit.burst * MILLION:
            return max(0, self.start - now)
        return self.stop - now

    def take(self, limit: Limit, cost: int, now: int, at: int) -> FixedWindow:
        if at >= self.stop:
            return FixedWindow(self.since, *_window(limit, at), cost, now)
        return replace(self, count=self.count + cost)

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        if now >= self.stop:
            return limit.burst * MILLION, 0
        remaining = free(limit, self.count) if now >= self.start else 0
        return remaining, self.stop - now if self.count else 0

    def mark(self) -> Mark:
        """The window of the take, by its first."""
        return Mark(self.began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> FixedWindow:
        """What is owed counts in the window in which that is known."""
        change = actual - cost
        if now < self.stop and (mark.value == self.began or change > 0):
            return replace(self, count=max(0, self.count + change))
        return self.take(limit, change, now, now) if change > 0 else self


def _window(limit: Limit, at: int) -> tuple[int, int]:
    assert isinstance(limit.rate, Rate)  # noqa: S101  # no algorithm of windows has slots
    if isinstance(limit.window, Calendar):
        assert limit.period  # noqa: S101  # checked where the limit is made
        _, start, stop = limit.window.starts(limit.period, at, 2)
        return start, stop
    period = limit.rate.period_us
    start = at if limit.window == FIRST_REQUEST else at - at % period
    return start, start + period


@dataclass(frozen=True, slots=True)
class SlidingWindow(State):
    """Counts of the last sub-windows ("parts"); of all but the oldest the whole is in use.

    The oldest is weighted by what of it is still within one period, rounded up to a millionth of a
    unit; or, where the limit says so, it is dropped.

    Attributes:
        start: the current part.
        part: microseconds a part.
        counts: of the current part first. One a part, and one more if the oldest is weighted.
        began: since when there was always something in use.
    """

    start: int
    part: int
    counts: tuple[int, ...]
    began: int

    @classmethod
    def empty(cls, limit: Limit, since: int) -> SlidingWindow:
        assert isinstance(limit.rate, Rate)  # noqa: S101  # no algorithm of windows has slots
        counts = (0,) * (limit.parts + (limit.oldest == "weighted"))
        return cls(since, 0, limit.rate.period_us // limit.parts, counts, 0)

    def is_of(self, limit: Limit) -> bool:
        own = self.empty(limit, self.since)
        return (self.part, len(self.counts)) == (own.part, len(own.counts))

    def written(self) -> int:
        return self.start

    def at(self, now: int) -> SlidingWindow:
        """The same with ``now`` in its current part; as it is if what it counts lies ahead."""
        start = now - now % self.part
        shift = (start - self.start) // self.part
        if shift == 0 or (shift < 0 and any(self.counts)):
            return self
        size = len(self.counts)
        counts = ((0,) * min(shift, size) + self.counts)[:size]
        return replace(self, start=start, counts=counts)

    def moved_back(self, _limit: Limit, now: int) -> SlidingWindow:
        """All of it in the current part, or a clock that swings would push it out."""
        counts = (sum(self.counts), *(0 for _ in self.counts[1:]))
        return replace(self, start=now - now % self.part, counts=counts)

    def in_use(self, at: int) -> int:
        return sum(self.at(at).counts)

    def _used(self, limit: Limit, now: int) -> int:
        current = self.at(now)
        if limit.oldest == "dropped":
            return sum(current.counts)
        *whole, oldest = current.counts
        rest = self.part - max(0, now - current.start)
        return sum(whole) + divided_up(oldest * rest, self.part)

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        room = limit.burst * MILLION - cost
        current = self.at(now)
        earliest = max(current.start, now)
        for ahead in range(len(self.counts) + 1):
            then = current.at(current.start + ahead * self.part)
            elapsed = max(0, earliest - then.start)
            if limit.oldest == "weighted":
                *whole, oldest = then.counts
                spare = room - sum(whole)
                if spare < 0:
                    continue
                if oldest > spare:
                    elapsed = max(elapsed, self.part - spare * self.part // oldest)
            elif sum(then.counts) > room:
                continue
            return then.start + elapsed - now
        raise AssertionError

    def take(self, _limit: Limit, cost: int, now: int, at: int) -> SlidingWindow:
        then, began = self.at(at), self._busy_since(now)
        return replace(then, counts=(then.counts[0] + cost, *then.counts[1:]), began=began)

    def _busy_since(self, now: int) -> int:
        return self.began if any(self.at(now).counts) else now

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        current = self.at(now)
        counted = [len(self.counts) - place for place, count in enumerate(current.counts) if count]
        reset = current.start + max(counted) * self.part - now if counted else 0
        remaining = free(limit, self._used(limit, now)) if now >= current.start else 0
        return remaining, reset

    def mark(self) -> Mark:
        """The part of the take, and since when it counts."""
        return Mark(self.start, self.began)

    def settle(self, _limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> SlidingWindow:
        current, change, began = self.at(now), actual - cost, self._busy_since(now)
        place = (current.start - mark.value) // self.part
        if mark.more != began or not 0 <= place < len(self.counts):
            if change < 0:
                return self
            place = 0
        counts = list(current.counts)
        counts[place] = max(0, counts[place] + change)
        return replace(current, counts=tuple(counts), began=began)
