"""Concurrency: slots under leases, so that a crashed holder does not keep its slot for ever.

The number of slots of an adaptive limit follows the answers of an API: AIMD, as for the rates in
:mod:`.adaptive`, but by the count of answers. It begins with the highest number. Each good answer
while at least half of the slots are in use adds a hundredth of a slot, and more the more good
answers there were since the last decrease. So the number is at most twice what was in use. A
refusal, or an answer that took longer than the limit's ``latency``, decreases it to
``KEPT_PERCENT``, at least by one; an overload does so only if there was a good answer since the
last decrease, since an API that answers nothing else is not overloaded by these slots. The answer
to a request that was sent before the last decrease is ignored.

Twin: ``slots.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, is_ahead
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.limit import Limit

#: The lease of a new slot, in microseconds.
LEASE_US = 30_000_000

#: The percentage of the slots that is kept in a decrease; and in another one before each of the
#: slots can have brought a good answer, since then the API's own limit is far below.
KEPT_PERCENT, KEPT_PERCENT_AGAIN = 90, 70

#: The good answers that would add a slot if growth did not accelerate; it is twice as fast after
#: as many. And the good answers after which it accelerates no more.
PROBE_ANSWERS, MAX_GOOD_ANSWERS = 100, 1000

#: The time for which a number below the highest is kept when no slot is in use.
MEMORY_US = 3_600_000_000


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
    learned: int = 0  #: the number of slots in force, in millionths of a slot; 0 if all are
    decreased_at: int = 0  #: the last decrease; 0 if there was none
    good: int = 0  #: good answers since then, while slots were in use
    at: int = 0  #: the last take or answer, if the limit is adaptive

    @classmethod
    def empty(cls, _limit: Limit, since: int) -> Slots:
        return cls(since, (), 0, 0)

    def in_force(self, limit: Limit) -> int:
        """Return the number of slots in force."""
        return _within(limit, self.learned) // MILLION

    def follow_limit(self, limit: Limit) -> Slots:
        """Return the state as written under a limit: only adaptive ones keep what was learned."""
        if limit.is_adaptive:
            return replace(self, learned=_stored(limit, self.learned))
        return replace(self, learned=0, decreased_at=0, good=0, at=0)

    def live_leases(self, now: int) -> tuple[SlotLease, ...]:
        """Return the leases that have not run out."""
        return tuple(lease for lease in self.leases if lease.until > now)

    def latest_time(self) -> int:
        lease = self.leases[-1].until - self.longest if self.leases else 0
        return max(lease, self.decreased_at)

    def rebase(self, _limit: Limit, now: int) -> Slots:
        return self._cut_leases(now)

    def _cut_leases(self, now: int) -> Slots:
        deadline = now + self.longest
        leases = (one._replace(until=min(one.until, deadline)) for one in self.leases)
        decreased_at = min(self.decreased_at, now)
        return replace(self, leases=tuple(leases), decreased_at=decreased_at)

    def follow_clock(self, now: int) -> Slots:
        """Return the state with no lease longer than ``longest``, if the clock was set back."""
        return self._cut_leases(now) if is_ahead(self.latest_time(), now) else self

    def in_use(self, at: int) -> int:
        return len(self.live_leases(at)) * MILLION

    def wait(self, limit: Limit, _cost: int, now: int) -> int:
        live = self.live_leases(now)
        over = len(live) - self.in_force(limit)
        return live[over].until - now if over >= 0 else 0

    def take(self, limit: Limit, _cost: int, now: int, at: int) -> Slots:
        live, lease = self.live_leases(now), SlotLease(at + LEASE_US, self.number + 1)
        duration = lease.until - now
        longest = max(self.longest, duration) if live else duration
        leases = tuple(sorted((*live, lease)))
        here = replace(self, at=now).follow_limit(limit)
        return replace(here, leases=leases, number=lease.number, longest=longest)

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
        return max(0, self.in_force(limit) - len(live)) * MILLION, live[
            -1
        ].until - now if live else 0

    def matters(self, limit: Limit, now: int) -> bool:
        is_fewer = self.in_force(limit) < limit.burst and now < self.at + MEMORY_US
        return is_fewer or self.remaining_and_reset(limit, now)[1] > 0

    def learn(self, limit: Limit, now: int, took: int, feedback: Feedback) -> Slots:
        """Return the state after an answer that says something about the number of slots.

        ``took``: microseconds from the request to the answer.
        """
        if now - took < self.decreased_at or (feedback.overloaded and self.good == 0):
            return self
        in_force = self.in_force(limit)
        is_slow = limit.latency_us is not None and took > limit.latency_us
        if feedback.refused or feedback.overloaded or is_slow:
            percent = KEPT_PERCENT_AGAIN if self.good < in_force else KEPT_PERCENT
            learned = max(limit.lowest or 1, min(in_force - 1, in_force * percent // 100)) * MILLION
            learned = _stored(limit, learned)
            return replace(self, learned=learned, decreased_at=now, good=0, at=now)
        if 2 * len(self.live_leases(now)) < in_force:
            return self
        growth = MILLION // PROBE_ANSWERS**2 * (PROBE_ANSWERS + self.good)
        learned = _within(limit, _within(limit, self.learned) + growth)
        good = min(MAX_GOOD_ANSWERS, self.good + 1)
        if (learned, good) == (_within(limit, self.learned), self.good):
            return self
        return replace(self, learned=_stored(limit, learned), good=good, at=now)

    def mark(self) -> Mark:
        """Return the number of the lease."""
        return Mark(self.number)

    def settle(self, _limit: Limit, _mark: Mark, _cost: int, _actual: int, _now: int) -> Slots:
        return self


def _within(limit: Limit, learned: int) -> int:
    """Return a learned number of slots, within the range of a limit, in millionths of a slot."""
    if limit.lowest is None or not learned:
        return limit.burst * MILLION
    return max(limit.lowest * MILLION, min(learned, limit.burst * MILLION))


def _stored(limit: Limit, learned: int) -> int:
    """Return a learned number as it is stored: 0 if all slots are in force."""
    learned = _within(limit, learned)
    return 0 if learned == limit.burst * MILLION else learned
