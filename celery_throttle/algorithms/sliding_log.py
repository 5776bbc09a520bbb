"""The sliding log: every admission of one period is remembered. Twin: ``sliding_log.lua``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, free
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate


class Entry(NamedTuple):
    """One admission; ``number`` tells those of the same microsecond apart."""

    time: int
    number: int
    cost: int


@dataclass(frozen=True, slots=True)
class SlidingLog(State):
    """What was admitted, oldest first. An entry counts for one period, its end not included.

    Attributes:
        period: when this was written.
        entries: those that counted at the last take.
        number: of the last entry.
        last: the time of the last entry.
        began: since when there was always one that counts; numbers begin again with the next.
    """

    period: int
    entries: tuple[Entry, ...]
    number: int
    last: int
    began: int

    @classmethod
    def empty(cls, limit: Limit, since: int) -> SlidingLog:
        assert isinstance(limit.rate, Rate)  # noqa: S101  # no log has slots
        return cls(since, limit.rate.period_us, (), 0, 0, 0)

    def is_of(self, limit: Limit) -> bool:
        return self.period == self.empty(limit, 0).period

    def written(self) -> int:
        return self.last

    def counting(self, now: int) -> tuple[Entry, ...]:
        """The entries that count."""
        return tuple(entry for entry in self.entries if entry.time > now - self.period)

    def moved_back(self, _limit: Limit, now: int) -> SlidingLog:
        entry = Entry(now, self.number + 1, sum(entry.cost for entry in self.counting(self.last)))
        return replace(self, entries=(entry,), number=entry.number, last=now)

    def in_use(self, at: int) -> int:
        return sum(entry.cost for entry in self.entries) if at < self.last + self.period else 0

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        entries = self.counting(now)
        over = sum(entry.cost for entry in entries) + cost - limit.burst * MILLION
        wait = 0
        for entry in entries:
            if over <= 0:
                break
            over -= entry.cost
            wait = entry.time + self.period - now
        return wait

    def take(self, _limit: Limit, cost: int, now: int, at: int) -> SlidingLog:
        if now >= self.last + self.period:
            entry = Entry(at, 1, cost)
            return replace(self, entries=(entry,), number=1, last=at, began=now)
        entry = Entry(max(at, self.last), self.number + 1, cost)
        entries = (*self.counting(now), entry)
        return replace(self, entries=entries, number=entry.number, last=entry.time)

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        used = sum(entry.cost for entry in self.counting(now))
        return free(limit, used), self.last + self.period - now if used else 0

    def mark(self) -> Mark:
        """The number of the entry, and since when numbers count."""
        return Mark(self.number, self.began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> SlidingLog:
        """An entry that counts no more is not changed; what is owed then becomes a new one."""
        entries = self.counting(now)
        if any((entry.number, self.began) == mark for entry in entries):
            worth = {mark.value: actual - cost}
            changed = [one._replace(cost=one.cost + worth.get(one.number, 0)) for one in entries]
            return replace(self, entries=tuple(entry for entry in changed if entry.cost > 0))
        return self.take(limit, actual - cost, now, now) if actual > cost else self
