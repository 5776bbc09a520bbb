"""One limit on both sides, the server and its Python twin, which must agree at every step.

What is shown of a limit is written as a plan, see ``operations/plan.py``, so that several
limits can go through it at the same time, each with a clock of its own; see ``wire.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from celery_throttle.algorithms.memory import LocalReservation, LocalTake, MemoryLimits
from celery_throttle.algorithms.slots import LEASE_US, Slots
from celery_throttle.limiter.backend import Plans
from celery_throttle.limits.cost import MILLION, Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.testing import ManualClock
from tests.algorithms.limits import SECOND
from tests.algorithms.traces import Step

START = 1_700_000_000_000_000
LATEST = 4_000_000_000_000_000  # in 2096; the longest times from there on are still exact


class Admission(NamedTuple):
    """An admission, and its time in real time and by the clock."""

    passed: int
    now: int
    cost: int


class Held(NamedTuple):
    """A reservation on both sides, and its actual cost."""

    server: Acquisition
    local: LocalReservation
    cost: int
    worth: int


class Lease(NamedTuple):
    """A slot that was taken on both sides, and when in real time."""

    holder: str
    take: LocalTake
    passed: int


@dataclass
class Side:
    """One limit and key on the server and in the Python twin, with one clock.

    Attributes:
        others: limits that take the place of the first.
        passed: microseconds that really passed: a clock that steps back takes nothing from them.
        wait: microseconds, told by the last refusal.
    """

    limit: Limit
    ref: LimitRef
    plans: Plans
    clock: ManualClock
    others: Sequence[Limit] = ()
    local: MemoryLimits = field(default_factory=MemoryLimits)
    passed: int = 0
    wait: int = 0
    admitted: list[Admission] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)

    @property
    def has_slots(self) -> bool:
        return self.limit.algorithm == CONCURRENCY

    def play(self, step: Step) -> Plan[Decision | None]:
        """Execute one step; return the decision, if there is one."""
        limit = self.limit
        if step.do in ("define", "learn", "settle", "renew", "pause"):
            yield from self.change(step)
        elif step.do == "advance":
            self.advance(step.time(limit, self.clock.now, self.wait))
        elif step.do == "back":
            self.clock.now = max(0, self.clock.now - step.time(limit, self.clock.now, self.wait))
        elif step.do == "peek":
            return (yield from self.peek(step.cost(limit)))
        elif self.has_slots:
            return (yield from self.take_slot(step.cost(limit, least=1)))
        elif step.do == "upto":
            return (yield from self.acquire_up_to(step.cost(limit)))
        elif step.do == "reserve":
            yield from self.reserve(step.cost(limit, least=1), step.worth)
        else:
            return (yield from self.acquire(step.cost(limit, least=1)))
        return None

    def change(self, step: Step) -> Plan[None]:
        """Execute a step that requests nothing."""
        if step.do == "define":
            yield from self.define(self.others[step.which % len(self.others)])
        elif step.do == "learn":
            yield from self.learn(step)
        elif step.do == "pause":
            yield from self.pause(step)
        elif step.do == "settle":
            yield from self.settle(step.which)
        else:
            yield from self.renew(step.which)

    def define(self, limit: Limit) -> Plan[None]:
        self.limit = limit
        whole = LimitRef(self.ref.name, None)
        yield from self.plans.define(whole, limit)
        self.local.define(whole, limit, self.clock.now)

    def advance(self, us: int) -> None:
        before, self.clock.now = self.clock.now, min(LATEST, self.clock.now + us)
        self.passed += self.clock.now - before

    def acquire(self, cost: int) -> Plan[Decision]:
        if self.has_slots:
            return (yield from self.take_slot(cost))
        taken = yield from self.plans.try_acquire(self.requirement(cost), None)
        return self.agreed(
            taken.decision, self.local.acquire({self.ref: units(cost)}, self.clock.now)
        )

    def peek(self, cost: int) -> Plan[Decision]:
        server = yield from self.plans.peek(self.requirement(cost))
        return self.agreed(server, self.local.peek({self.ref: units(cost)}, self.clock.now))

    def acquire_up_to(self, cost: int) -> Plan[Decision]:
        server = yield from self.plans.acquire_up_to(self.requirement(cost))
        local = self.local.acquire_up_to([self.ref], units(cost), self.clock.now)
        return self.agreed(server, local)

    def reserve(self, cost: int, worth: int) -> Plan[None]:
        """Take an estimate; ``worth`` is in thousandths of it."""
        server = yield from self.plans.try_acquire(self.requirement(cost), None, mode="reserve")
        local = self.local.reserve({self.ref: units(cost)}, self.clock.now)
        assert bool(server.decision) == (local is not None), self._about()
        if local is not None:
            self.admitted.append(Admission(self.passed, self.clock.now, cost))
            self.held.append(Held(server, local, cost, worth * cost // 1000))
        yield from self.peek(0)

    def settle(self, which: int) -> Plan[None]:
        """Settle a reservation, or release a slot."""
        if self.leases:
            lease = self.leases.pop(which % len(self.leases))
            yield from self.plans.release([self.ref], lease.holder)
            self.local.release({self.ref: lease.take})
        elif self.held:
            held = self.held.pop(which % len(self.held))
            yield from self.plans.settle(held.server, units(held.worth))
            self.local.settle(held.local, {self.ref: units(held.worth)}, self.clock.now)
        else:
            return
        yield from self.peek(0)

    def renew(self, which: int) -> Plan[None]:
        """Renew one slot, unless its lease has run out and another holder took it."""
        if not self.leases:
            return
        which %= len(self.leases)
        lease = self.leases[which]
        yield from self.plans.renew([(self.ref, lease.holder)], LEASE_US / SECOND)
        self.local.renew({self.ref: lease.take}, LEASE_US, self.clock.now)
        (state,) = self.local._states[self.ref]
        assert isinstance(state, Slots)
        if any(one.number == lease.take.marks[0].value for one in state.leases):
            self.leases[which] = lease._replace(passed=self.passed)

    def pause(self, step: Step) -> Plan[None]:
        """Pause the name or this key of it, for some time or until resumed; or resume it."""
        ref = self.ref if step.which % 2 else LimitRef(self.ref.name, None)
        if step.worth:
            most = min(step.time(self.limit, self.clock.now, self.wait), 10**9 * SECOND)
            us = None if step.which > 1 else most
            yield from self.plans.pause(ref, None if us is None else us / SECOND)
            self.local.pause(ref, us, self.clock.now)
        else:
            yield from self.plans.resume(ref)
            self.local.resume(ref)
        yield from self.peek(0)

    def learn(self, step: Step) -> Plan[None]:
        """Apply feedback: a third of the answers are refusals; ``left`` is a share of the burst."""
        left = None if step.which % 2 else step.share * self.limit.burst // 1000
        took = step.time(self.limit, self.clock.now, self.wait)
        feedback = Feedback(
            refused=step.worth == 0,
            overloaded=step.worth == 1,
            stop=None if step.which > 1 else 0.0,
            left=left,
            limit=None if step.more else step.share,
            period=step.which or None,
            took=took / SECOND,
        )
        server = yield from self.plans.learn({self.ref: feedback})
        local = self.local.learn({self.ref: feedback}, self.clock.now)
        assert server == pause_to_seconds(local), self._about()
        yield from self.peek(0)

    def take_slot(self, cost: int) -> Plan[Decision]:
        holder = Holder(f"holder {len(self.admitted)}", LEASE_US / SECOND)
        taken = yield from self.plans.try_acquire(
            self.requirement(cost), None, mode="slot", holder=holder
        )
        local = self.local.acquire({self.ref: units(cost)}, self.clock.now)
        decision = self.agreed(taken.decision, local)
        if decision:
            (state,) = self.local._states[self.ref]
            take = LocalTake(cost, state.since, (state.mark(),))
            self.leases.append(Lease(holder.name, take, self.passed))
        return decision

    def requirement(self, cost: int) -> Requirement:
        return Requirement((self.ref,), (cost,))

    def agreed(self, server: Decision, local: Decision) -> Decision:
        assert server == local, f"server    {server}\nreference {local}\n{self._about()}"
        if server.retry_after:
            self.wait = in_us(server.retry_after)
        if server.granted:
            granted = round(Fraction(server.granted) * MILLION)
            self.admitted.append(Admission(self.passed, self.clock.now, granted))
        return server

    def _about(self) -> str:
        return f"{self.ref}, {self.limit}, at {self.clock.now}"


def units(cost: int) -> Cost:
    """Convert millionths of a unit to units, exactly."""
    return cost // MILLION if cost % MILLION == 0 else Fraction(cost, MILLION)


def in_us(seconds: float) -> int:
    """Convert seconds to microseconds; a product of doubles may be off by one."""
    return round(Fraction(seconds) * SECOND)
