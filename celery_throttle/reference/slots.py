"""Concurrency: leases with a deadline, so that who dies holding one does not hold it for ever.

Twin: ``lua/slots.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.costs import MILLION
from celery_throttle.limits import Limit
from celery_throttle.reference.state import Mark, State

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
    """

    leases: tuple[Lease, ...]
    number: int

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> Slots:
        return cls(since, (), 0)

    def live(self, now: int) -> tuple[Lease, ...]:
        """The leases that have not run out."""
        return tuple(lease for lease in self.leases if lease.until > now)

    def written(self) -> int:
        return 0

    def moved_back(self, _limit: Limit, _now: int) -> Slots:
        return self

    def in_use(self, at: int) -> int:
        return len(self.live(at)) * MILLION

    def wait(self, limit: Limit, _cost: int, now: int) -> int:
        live = self.live(now)
        return live[len(live) - limit.burst].until - now if len(live) >= limit.burst else 0

    def take(self, _limit: Limit, _cost: int, now: int, at: int) -> Slots:
        lease = Lease(at + LEASE, self.number + 1)
        return replace(self, leases=tuple(sorted((*self.live(now), lease))), number=lease.number)

    def release(self, mark: Mark) -> Slots:
        """The state once a slot is given back."""
        return replace(self, leases=tuple(one for one in self.leases if one.number != mark.value))

    def renew(self, mark: Mark, until: int) -> Slots:
        """The state once a lease ends at another time; one that has been given back does not."""
        leases = sorted(
            one._replace(until=until) if one.number == mark.value else one for one in self.leases
        )
        return replace(self, leases=tuple(leases))

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        live = self.live(now)
        return max(0, limit.burst - len(live)) * MILLION, live[-1].until - now if live else 0

    def mark(self) -> Mark:
        """The number of the lease."""
        return Mark(self.number)

    def settle(self, _limit: Limit, _mark: Mark, _cost: int, _actual: int, _now: int) -> Slots:
        return self
