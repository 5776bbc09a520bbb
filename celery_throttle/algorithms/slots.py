"""Concurrency: slots under leases, so that a crashed holder does not keep its slot for ever.

Twin: ``slots.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit

#: The lease of a new slot, in microseconds.
LEASE_US = 30_000_000


class SlotLease(NamedTuple):
    """One slot in use until it is released, or until a time."""

    until: int
    number: int


@dataclass(frozen=True, slots=True)
class Slots(State):
    """The slots in use. Each take is one slot, whatever its cost."""

    leases: tuple[SlotLease, ...]  #: ordered by their ends
    number: int  #: of the last lease
    #: The longest lease in microseconds. If one ends later than that, the clock has been set back
    #: since it was written.
    longest: int

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> Slots:
        return cls(since, (), 0, 0)

    def live_leases(self, now: int) -> tuple[SlotLease, ...]:
        """Return the leases that have not run out."""
        return tuple(lease for lease in self.leases if lease.until > now)

    def latest_time(self) -> int:
        return self.leases[-1].until - self.longest if self.leases else 0

    def rebase(self, _limit: Limit, now: int) -> Slots:
        return self._cut_leases(now)

    def _cut_leases(self, now: int) -> Slots:
        deadline = now + self.longest
        leases = (one._replace(until=min(one.until, deadline)) for one in self.leases)
        return replace(self, leases=tuple(leases))

    def follow_clock(self, now: int) -> Slots:
        """Return the state with no lease longer than ``longest``, if the clock was set back."""
        return self._cut_leases(now) if is_ahead(self.latest_time(), now) else self

    def in_use(self, at: int) -> int:
        return len(self.live_leases(at)) * MILLION

    def wait(self, limit: Limit, _cost: int, now: int) -> int:
        live = self.live_leases(now)
        return live[len(live) - limit.burst].until - now if len(live) >= limit.burst else 0

    def take(self, _limit: Limit, _cost: int, now: int, at: int) -> Slots:
        live, lease = self.live_leases(now), SlotLease(at + LEASE_US, self.number + 1)
        duration = lease.until - now
        longest = max(self.longest, duration) if live else duration
        leases = tuple(sorted((*live, lease)))
        return replace(self, leases=leases, number=lease.number, longest=longest)

    def renew(self, mark: Mark, lease: int, now: int) -> Slots:
        """Return the state with a lease of ``lease`` microseconds from now, unless released."""
        until = now + lease
        leases = sorted(
            one._replace(until=until) if one.number == mark.value else one for one in self.leases
        )
        longest = max(self.longest, lease) if leases else self.longest
        return replace(self, leases=tuple(leases), longest=longest)

    def release(self, mark: Mark) -> Slots:
        """Return the state without a lease."""
        leases = tuple(one for one in self.leases if one.number != mark.value)
        return replace(self, leases=leases)

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        live = self.live_leases(now)
        return max(0, limit.burst - len(live)) * MILLION, live[-1].until - now if live else 0

    def mark(self) -> Mark:
        """Return the number of the lease."""
        return Mark(self.number)

    def settle(self, _limit: Limit, _mark: Mark, _cost: int, _actual: int, _now: int) -> Slots:
        return self
