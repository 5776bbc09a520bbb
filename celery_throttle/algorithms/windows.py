"""Algorithms that count in windows: fixed ones, sub-windows, or the period before a request.

Twins: ``fixed_window.lua``, ``sliding_window.lua``, ``sliding_log.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, ceil_div, free_amount
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate


@dataclass(frozen=True, slots=True)
class FixedWindow(State):
    """The count of one window.

    A start may be booked in the next window, up to 20 ms before it begins. From then on the current
    window admits nothing. Before the first request ``start == stop``.
    """

    start: int
    stop: int
    count: int  #: the amount taken in the window
    began: int  #: the start of its first take: by then no take of the window before starts

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> FixedWindow:
        return cls(since, 0, 0, 0, 0)

    def latest_time(self) -> int:
        return self.start

    def rebase(self, limit: Limit, now: int) -> FixedWindow:
        """Let the window begin now. It keeps its end, but ends with the next window at most."""
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

    def take(self, limit: Limit, cost: int, _now: int, at: int) -> FixedWindow:
        if at >= self.stop:
            return FixedWindow(self.since, *_window(limit, at), cost, at)
        return replace(self, count=self.count + cost)

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        if now >= self.stop:
            return limit.burst * MILLION, 0
        remaining = free_amount(limit, self.count) if now >= self.start else 0
        return remaining, self.stop - now if self.count else 0

    def matters(self, _limit: Limit, now: int) -> bool:
        return now < self.stop  # a window that began with its first request keeps its end

    def mark(self) -> Mark:
        """Return the start of the first take of the window."""
        return Mark(self.began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> FixedWindow:
        """Settle a take. A debt counts in the current window.

        If nothing is in use any more, a window that began with its first request has not begun.
        """
        change = actual - cost
        if now < self.stop and (mark.value == self.began or change > 0):
            count = max(0, self.count + change)
            has_begun = count > 0 or limit.window != FIRST_REQUEST
            return replace(self, count=count, stop=self.stop if has_begun else max(self.start, now))
        return self.take(limit, change, now, now) if change > 0 else self


def _window(limit: Limit, at: int) -> tuple[int, int]:
    assert isinstance(limit.rate, Rate)  # noqa: S101  # windows have no slots
    if isinstance(limit.window, Calendar):
        assert limit.calendar_period  # noqa: S101  # Limit checks it
        _, start, stop = limit.window.starts(limit.calendar_period, at, 2)
        return start, stop
    period = limit.rate.period_us
    start = at if limit.window == FIRST_REQUEST else at - at % period
    return start, start + period


@dataclass(frozen=True, slots=True)
class SlidingWindow(State):
    """The counts of the last sub-windows ("parts").

    The count of the oldest part is weighted by the share of the part that is within one period,
    rounded up to a millionth of a unit; or it is dropped, if the limit says so. The others count
    in full.
    """

    start: int  #: of the current part
    part: int  #: the length of a part in microseconds
    #: One for each part, the current part first; and one more if the oldest is weighted.
    counts: tuple[int, ...]
    began: int  #: since when there are always units in use

    @classmethod
    def empty(cls, limit: Limit, since: int) -> SlidingWindow:
        assert isinstance(limit.rate, Rate)  # noqa: S101  # windows have no slots
        counts = (0,) * (limit.parts + (limit.oldest == "weighted"))
        return cls(since, 0, limit.rate.period_us // limit.parts, counts, 0)

    def matches(self, limit: Limit) -> bool:
        own = self.empty(limit, self.since)
        return (self.part, len(self.counts)) == (own.part, len(own.counts))

    def latest_time(self) -> int:
        return self.start

    def at(self, now: int) -> SlidingWindow:
        """Return the state with ``now`` in the current part; unchanged if its counts are ahead."""
        start = now - now % self.part
        shift = (start - self.start) // self.part
        if shift == 0 or (shift < 0 and any(self.counts)):
            return self
        size = len(self.counts)
        counts = ((0,) * min(shift, size) + self.counts)[:size]
        return replace(self, start=start, counts=counts)

    def rebase(self, _limit: Limit, now: int) -> SlidingWindow:
        """Move all counts to the current part: a clock that swings would drop them otherwise."""
        counts = (sum(self.counts), *(0 for _ in self.counts[1:]))
        return replace(self, start=now - now % self.part, counts=counts)

    def in_use(self, at: int) -> int:
        return sum(self.at(at).counts)

    def _used(self, limit: Limit, now: int) -> int:
        current = self.at(now)
        if limit.oldest == "dropped":
            return sum(current.counts)
        *whole, oldest = current.counts
        left = self.part - max(0, now - current.start)
        return sum(whole) + ceil_div(oldest * left, self.part)

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

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        current = self.at(now)
        ages = [len(self.counts) - index for index, count in enumerate(current.counts) if count]
        reset = current.start + max(ages) * self.part - now if ages else 0
        remaining = free_amount(limit, self._used(limit, now)) if now >= current.start else 0
        return remaining, reset

    def mark(self) -> Mark:
        """Return the part of the take, and the start of the busy period."""
        return Mark(self.start, self.began)

    def settle(self, _limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> SlidingWindow:
        current, change, began = self.at(now), actual - cost, self._busy_since(now)
        index = (current.start - mark.value) // self.part
        if mark.more != began or not 0 <= index < len(self.counts):
            if change < 0:
                return self
            index = 0
        counts = list(current.counts)
        counts[index] = max(0, counts[index] + change)
        return replace(current, counts=tuple(counts), began=began)


class LogEntry(NamedTuple):
    """One admission; ``number`` distinguishes those of the same microsecond."""

    time: int
    number: int
    cost: int


@dataclass(frozen=True, slots=True)
class SlidingLog(State):
    """All admissions of one period, the oldest first. An entry does not count at its end."""

    period: int  #: when this was written
    entries: tuple[LogEntry, ...]  #: those that counted at the last take
    number: int  #: of the last entry
    last: int  #: the time of the last entry
    began: int  #: since when an entry counts; numbers start at 1 with the next busy period

    @classmethod
    def empty(cls, limit: Limit, since: int) -> SlidingLog:
        assert isinstance(limit.rate, Rate)  # noqa: S101  # a log has no slots
        return cls(since, limit.rate.period_us, (), 0, 0, 0)

    def matches(self, limit: Limit) -> bool:
        return self.period == self.empty(limit, 0).period

    def latest_time(self) -> int:
        return self.last

    def live_entries(self, now: int) -> tuple[LogEntry, ...]:
        """Return the entries that count."""
        return tuple(entry for entry in self.entries if entry.time > now - self.period)

    def rebase(self, _limit: Limit, now: int) -> SlidingLog:
        cost = sum(entry.cost for entry in self.live_entries(self.last))
        entry = LogEntry(now, self.number + 1, cost)
        return replace(self, entries=(entry,), number=entry.number, last=now)

    def in_use(self, at: int) -> int:
        return sum(entry.cost for entry in self.entries) if at < self.last + self.period else 0

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        entries = self.live_entries(now)
        excess = sum(entry.cost for entry in entries) + cost - limit.burst * MILLION
        wait = 0
        for entry in entries:
            if excess <= 0:
                break
            excess -= entry.cost
            wait = entry.time + self.period - now
        return wait

    def take(self, _limit: Limit, cost: int, now: int, at: int) -> SlidingLog:
        if now >= self.last + self.period:
            entry = LogEntry(at, 1, cost)
            return replace(self, entries=(entry,), number=1, last=at, began=now)
        entry = LogEntry(max(at, self.last), self.number + 1, cost)
        entries = (*self.live_entries(now), entry)
        return replace(self, entries=entries, number=entry.number, last=entry.time)

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        used = sum(entry.cost for entry in self.live_entries(now))
        return free_amount(limit, used), self.last + self.period - now if used else 0

    def mark(self) -> Mark:
        """Return the number of the entry, and the start of the busy period that it belongs to."""
        return Mark(self.number, self.began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> SlidingLog:
        """Change the entry if it still counts; otherwise a debt becomes a new entry."""
        entries = self.live_entries(now)
        if any((entry.number, self.began) == mark for entry in entries):
            change = {mark.value: actual - cost}
            changed = [one._replace(cost=one.cost + change.get(one.number, 0)) for one in entries]
            return replace(self, entries=tuple(entry for entry in changed if entry.cost > 0))
        return self.take(limit, actual - cost, now, now) if actual > cost else self
