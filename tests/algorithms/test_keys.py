"""The cap on keys in use (`max-keys`), on the server and in the Python twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.algorithms.memory import LocalReservation, MemoryLimits
from celery_throttle.algorithms.slots import LEASE_US
from celery_throttle.errors import LimitValueError
from celery_throttle.limiter.backend import Plans
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Acquisition, Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import pack_command
from celery_throttle.testing import ManualClock
from tests.algorithms.limits import EVERY, LIMITS, SECOND
from tests.algorithms.properties import Sides, bounded
from tests.algorithms.sides import START, in_us, units
from tests.algorithms.traces import full, interval
from tests.algorithms.wire import Wire, together

KEYS = 5
FARTHEST = 4_000_000_000_000_000

TOO_MANY_KEYS = r"more keys of limit .* than can ever be in use; .* at most \d+ \(max-keys"


class Step(NamedTuple):
    """One step: of the keys whose bit is set in ``which``, a share (in thousandths)."""

    do: str
    which: int
    share: int


steps = st.builds(
    Step,
    st.sampled_from(
        [
            *("acquire", "acquire", "acquire", "acquire", "upto", "peek", "reserve", "settle"),
            *("advance", "advance", "wait", "back", "reset", "define", "renew"),
        ]
    ),
    st.integers(0, 2**KEYS - 1) | st.sampled_from([1 << number for number in range(KEYS)]),
    st.sampled_from([0, 1, 250, 333, 500, 1000, 1001]),
)


class Crowd:
    """Keys of one name, on the server and in the Python twin."""

    def __init__(self, wire: Wire, limit: Limit, others: Sequence[Limit]) -> None:
        self._wire = wire
        self._limit, self._others = limit, others
        self._clock = ManualClock(START)
        self._plans = Plans({}, Keys(), self._clock)
        self._local = MemoryLimits()
        self._taken: list[tuple[Acquisition | Holder, tuple[LimitRef, ...], LocalReservation]] = []
        self._holders = 0
        self._wait = 0

    @property
    def _has_slots(self) -> bool:
        return self._limit.algorithm == CONCURRENCY

    def play(self, steps: Sequence[Step]) -> Plan[None]:
        yield from self._define(self._limit)
        for step in steps:
            refs = tuple(LimitRef("name", f"k{n}") for n in range(KEYS) if step.which & 1 << n)
            yield from self._play(step, refs or (LimitRef("name", None),))
            yield from self._peek(LimitRef("name", "new"), 0)

    def _define(self, limit: Limit) -> Plan[None]:
        self._limit = limit
        self._clock.now += 1  # limits are told apart by since when they are in force
        whole = LimitRef("name", None)
        yield from self._plans.define(whole, limit)
        self._local.define(whole, limit, self._clock.now)

    def _play(self, step: Step, refs: tuple[LimitRef, ...]) -> Plan[None]:
        now, share = self._clock.now, step.share
        if step.do == "advance":
            span = full(self._limit) if step.which % 2 else interval(self._limit)
            self._clock.now = min(FARTHEST, now + span * share // 1000)
        elif step.do == "wait":
            self._clock.now = min(FARTHEST, now + self._wait)
        elif step.do == "back":
            self._clock.now = max(0, now - interval(self._limit) * share // 100)
        elif step.do == "define":
            yield from self._define(self._others[step.which % len(self._others)])
        elif step.do == "reset":
            yield from self._plans.reset(refs[0])
            self._local.reset(refs[0])
        elif step.do == "settle":
            yield from self._settle(step)
        elif step.do == "renew":
            yield from self._renew(step)
        elif step.do == "peek":
            yield from self._peek(refs[0], share)
        else:
            yield from self._take(step.do, refs, share)

    def _take(self, do: str, refs: tuple[LimitRef, ...], share: int) -> Plan[None]:
        cost = max(MILLION, share * self._limit.burst * 1000 // MILLION * MILLION)
        cost = min(cost, self._limit.burst * MILLION)
        for ref in refs:  # states are written anew at a look after the clock has stepped back
            yield from self._peek(ref, 0)
        requirement, kept = Requirement(refs, (cost,) * len(refs)), self._kept()
        costs = dict.fromkeys(refs, units(cost))
        if self._never(refs):
            for take in (self._plans.try_acquire(requirement, None), self._plans.peek(requirement)):
                with pytest.raises(LimitValueError, match=TOO_MANY_KEYS):
                    yield from take
            with pytest.raises(LimitValueError, match="than can ever be in use"):
                self._local.acquire(costs, self._clock.now)
            return
        if self._has_slots or do == "reserve":
            decision = yield from self._hold(requirement)
        elif do == "upto":
            decision = yield from self._plans.acquire_up_to(requirement)
            local = self._local.acquire_up_to(refs, units(cost), self._clock.now)
            assert decision == local
        else:
            decision = (yield from self._plans.try_acquire(requirement, None)).decision
            assert decision == self._local.acquire(costs, self._clock.now)
        if not decision:
            assert self._kept() == kept, "a refusal has written something"
            self._wait = in_us(decision.retry_after or 0.0)

    def _hold(self, requirement: Requirement) -> Plan[Decision]:
        """Reserve, or take slots."""
        self._holders += 1
        holder = Holder(f"holder {self._holders}", LEASE_US / SECOND) if self._has_slots else None
        mode = "slot" if holder else "reserve"
        taken = yield from self._plans.try_acquire(requirement, None, mode=mode, holder=holder)
        costs = {
            ref: units(cost) for ref, cost in zip(requirement.refs, requirement.costs, strict=True)
        }
        local = self._local.reserve(costs, self._clock.now)
        assert bool(taken.decision) == (local is not None)
        if local is not None:
            self._taken.append((holder or taken, requirement.refs, local))
        return taken.decision

    def _settle(self, step: Step) -> Plan[None]:
        if not self._taken:
            return
        taken, refs, local = self._taken.pop(step.which % len(self._taken))
        if isinstance(taken, Holder):
            yield from self._plans.release(refs, taken.name)
            self._local.release(local)
            return
        worth = units(taken.requirement.costs[0] * step.share // 500)
        yield from self._plans.settle(taken, worth)
        self._local.settle(local, dict.fromkeys(refs, worth), self._clock.now)

    def _renew(self, step: Step) -> Plan[None]:
        if self._taken:
            taken, refs, local = self._taken[step.which % len(self._taken)]
            if isinstance(taken, Holder):
                held = [(ref, taken.name) for ref in refs]
                yield from self._plans.renew(held, LEASE_US / SECOND)
                self._local.renew(local, LEASE_US, self._clock.now)

    def _peek(self, ref: LimitRef, share: int) -> Plan[None]:
        cost = min(share * self._limit.burst * 1000, self._limit.burst * MILLION)
        decision = yield from self._plans.peek(Requirement((ref,), (cost,)))
        assert decision == self._local.peek({ref: units(cost)}, self._clock.now)

    def _never(self, refs: Sequence[LimitRef]) -> bool:
        """Whether more keys are new than can ever be in use."""
        try:
            self._local.peek(dict.fromkeys(refs, 0), self._clock.now)
        except LimitValueError:
            return True
        return False

    def _kept(self) -> list[Any]:
        """The stored states, byte for byte."""
        kinds = ("state", "entries", "key-cap")
        found = self._wire.ask(*(pack_command("KEYS", f"*:{kind}:*") for kind in kinds))
        names = [name for some in found for name in sorted(some)]
        return [names, *self._wire.ask(*(pack_command("DUMP", name) for name in names))]


def with_most(limit: Limit, max_keys: int) -> Limit:
    return replace(limit, max_keys=max_keys or None)


@pytest.mark.parametrize("algorithm", EVERY)
def test_server_and_reference_agree(sides: Sides, algorithm: str) -> None:
    """Whatever happens to the keys, and to their cap."""
    limits = st.one_of(*LIMITS[algorithm])
    bounds = st.lists(st.integers(0, KEYS), min_size=4, max_size=4)

    @bounded(100)
    @given(limit=limits, other=limits, bounds=bounds, steps=st.lists(steps, min_size=8))
    def play(limit: Limit, other: Limit, bounds: list[int], steps: list[Step]) -> None:
        sides.wire.ask(pack_command("FLUSHDB"))
        first, *others = map(with_most, (limit, limit, limit, other), bounds)
        together(sides.wire, [Crowd(sides.wire, first, others).play(steps)])

    play()
