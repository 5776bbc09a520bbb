"""Concurrency: leases with a deadline, so that who dies holding one does not hold it for ever.

Twin: ``slots.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import LONGEST_LEASE, Limit

#: Microseconds that a lease lasts here.
LEASE = 30_000_000


class Lease(NamedTuple):
    """One slot in use, until it is given back or its deadline has come."""

    until: int
    number: int


@dataclass(frozen=True, slots=True)
class Slots(State):
    """Who holds a slot. Each take is one slot, whatever its cost.

    Attributes:
        leases: the one that ends first is the first.
        number: of the last lease.
        longest: microseconds that the longest of the leases lasts. A deadline farther ahead was
            written before the clock was set back.
    """

    leases: tuple[Lease, ...]
    number: int
    longest: int

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> Slots:
        return cls(since, (), 0, 0)

    def live(self, now: int) -> tuple[Lease, ...]:
        """The leases that have not run out."""
        return tuple(lease for lease in self.leases if lease.until > now)

    def written(self) -> int:
        return self.leases[-1].until - self.longest if self.leases else 0

    def moved_back(self, _limit: Limit, now: int) -> Slots:
        return self._moved_back(now)

    def _moved_back(self, now: int) -> Slots:
        deadline = now + self.longest
        leases = (one._replace(until=min(one.until, deadline)) for one in self.leases)
        return replace(self, leases=tuple(leases))

    def follow_clock(self, now: int) -> Slots:
        """The state in which no lease lasts longer than before, if the clock was set back."""
        return self._moved_back(now) if is_ahead(self.written(), now) else self

    def with_longest_unknown(self) -> Slots:
        """The state once it is forgotten how long the longest lease lasts."""
        return replace(self, longest=LONGEST_LEASE * 1_000_000)

    def in_use(self, at: int) -> int:
        return len(self.live(at)) * MILLION

    def wait(self, limit: Limit, _cost: int, now: int) -> int:
        live = self.live(now)
        return live[len(live) - limit.burst].until - now if len(live) >= limit.burst else 0

    def take(self, _limit: Limit, _cost: int, now: int, at: int) -> Slots:
        live, lease = self.live(now), Lease(at + LEASE, self.number + 1)
        lasts = lease.until - now
        longest = max(self.longest, lasts) if live else lasts
        leases = tuple(sorted((*live, lease)))
        return replace(self, leases=leases, number=lease.number, longest=longest)

    def release(self, mark: Mark) -> Slots:
        """The state once a slot is given back."""
        return replace(self, leases=tuple(one for one in self.leases if one.number != mark.value))

    def renew(self, mark: Mark, lease: int, now: int) -> Slots:
        """The state once a lease lasts so long from now; one that was given back does not."""
        until = now + lease
        leases = sorted(
            one._replace(until=until) if one.number == mark.value else one for one in self.leases
        )
        longest = max(self.longest, lease) if leases else self.longest
        return replace(self, leases=tuple(leases), longest=longest)

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        live = self.live(now)
        return max(0, limit.burst - len(live)) * MILLION, live[-1].until - now if live else 0

    def mark(self) -> Mark:
        """The number of the lease."""
        return Mark(self.number)

    def settle(self, _limit: Limit, _mark: Mark, _cost: int, _actual: int, _now: int) -> Slots:
        return self
