"""The sliding log: stores every admission of one period. Twin: ``sliding_log.lua``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, free_amount
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate


class LogEntry(NamedTuple):
    """One admission; ``number`` distinguishes those of the same microsecond."""

    time: int
    number: int
    cost: int


@dataclass(frozen=True, slots=True)
class SlidingLog(State):
    """Admissions, the oldest first. An entry counts for one period, its end not included."""

    period: int  #: when this was written
    entries: tuple[LogEntry, ...]  #: those that counted at the last take
    number: int  #: of the last entry
    last: int  #: the time of the last entry
    began: (
        int  #: since when at least one entry counts; numbers start at 1 with the next busy period
    )

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
