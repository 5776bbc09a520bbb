"""Several limits of any mix in one call: all or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.slots import LEASE_US
from celery_throttle.limiter.backend import Plans
from celery_throttle.limits.cost import MILLION, Cost
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MAX_EXACT
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import Holder
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import pack_command
from celery_throttle.testing import ManualClock
from tests.algorithms.limits import LIMITS, SECOND, any_rate, any_slots
from tests.algorithms.properties import Sides, bounded, counted
from tests.algorithms.sides import START, in_us, units
from tests.algorithms.traces import interval
from tests.algorithms.wire import Wire, together

Names = list[tuple[Limit, ...]]

gcra = st.one_of(*LIMITS["gcra"])


def several(*names: st.SearchStrategy[tuple[Limit, ...]]) -> st.SearchStrategy[Names]:
    return st.lists(st.one_of(*names), min_size=2, max_size=4)


#: Some of these are names with two limits, which share a state; in some all limits are GCRA, for
#: which the script has a short cut.
any_names = several(
    st.tuples(any_rate), st.tuples(any_rate), st.tuples(any_rate, any_rate | any_slots)
) | several(st.tuples(gcra), st.tuples(gcra, gcra))


class Ask(NamedTuple):
    """One call: of the names whose bit is set in ``which``, a share (in thousandths) of each."""

    do: str
    which: int
    share: int


asks = st.builds(
    Ask,
    st.sampled_from(["acquire", "acquire", "acquire", "reserve", "advance", "advance", "wait"]),
    st.integers(1, 15),
    st.sampled_from([0, 1, 250, 333, 500, 1000]),
)


class Several:
    """Names and keys on the server and in the Python twin."""

    def __init__(self, wire: Wire, limits: Sequence[Sequence[Limit]]) -> None:
        self._wire = wire
        self._limits = limits
        self._clock = ManualClock(START)
        self._plans = Plans({}, Keys(), self._clock)
        self._local = MemoryLimits()
        self._refs = [LimitRef(f"name{number}", "key") for number in range(len(limits))]
        self._holders = 0

    def play(self, asks: Sequence[Ask]) -> Plan[None]:
        for ref, limits in zip(self._refs, self._limits, strict=True):
            whole = LimitRef(ref.name, None)
            yield from self._plans.define(whole, limits)
            self._local.define(whole, limits, START)
        for ask in asks:
            which = [number for number in range(len(self._refs)) if ask.which & 1 << number]
            if ask.do == "advance":
                limit = self._limits[ask.which % len(self._limits)][0]
                self._clock.now += interval(limit) * ask.share // 300
            elif which:
                yield from self._ask(ask, which)

    def _ask(self, ask: Ask, which: Sequence[int]) -> Plan[None]:
        requirement = Requirement(
            tuple(self._refs[number] for number in which),
            tuple(self._cost(self._limits[number], ask.share) for number in which),
        )
        kept = self._kept()
        if ask.do == "reserve" and not self._has_slots(which):
            yield from self._reserve(requirement, ask.share)
            return
        decision = yield from self._take(requirement, slots=self._has_slots(which))
        if not decision:
            assert self._kept() == kept, "a refusal has written something"
            yield from self._explained(requirement, decision)
            wait = in_us(decision.retry_after or 0.0)
            if ask.do == "wait" and self._clock.now + wait <= MAX_EXACT:
                self._clock.now += wait
                assert (yield from self._take(requirement, slots=self._has_slots(which)))

    def _take(self, requirement: Requirement, *, slots: bool) -> Plan[Decision]:
        self._holders += 1
        holder = Holder(f"holder {self._holders}", LEASE_US / SECOND) if slots else None
        mode = "slot" if slots else "take"
        taken = yield from self._plans.try_acquire(requirement, None, mode=mode, holder=holder)
        local = self._local.acquire(_costs(requirement), self._clock.now)
        assert taken.decision == local
        return local

    def _reserve(self, requirement: Requirement, worth: int) -> Plan[None]:
        taken = yield from self._plans.try_acquire(requirement, None, mode="reserve")
        local = self._local.reserve(_costs(requirement), self._clock.now)
        assert bool(taken.decision) == (local is not None)
        if local is None:
            return
        actual = {
            ref: units(cost * worth // 500)
            for ref, cost in zip(requirement.refs, requirement.costs, strict=True)
        }
        yield from self._plans.settle(taken, {ref.name: cost for ref, cost in actual.items()})
        self._local.settle(local, actual, self._clock.now)
        yield from self._peek(requirement.refs, (0,) * len(requirement.refs))

    def _explained(self, requirement: Requirement, decision: Decision) -> Plan[None]:
        """The name that refuses has the longest wait, and all pass at its end."""
        waits = {}
        for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
            alone = yield from self._peek((ref,), (cost,))
            waits[ref.name] = alone.retry_after
        assert decision.retry_after == max(waits.values(), key=lambda wait: wait or 0.0)
        assert decision.limited_by is not None
        assert waits[decision.limited_by] == decision.retry_after
        now, wait = self._clock.now, in_us(decision.retry_after or 0.0)
        if now + wait <= MAX_EXACT:
            self._clock.now = now + wait - 1
            assert not (yield from self._peek(requirement.refs, requirement.costs))
            self._clock.now = now + wait
            assert (yield from self._peek(requirement.refs, requirement.costs))
            self._clock.now = now

    def _peek(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...]) -> Plan[Decision]:
        requirement = Requirement(refs, costs)
        decision = yield from self._plans.peek(requirement)
        assert decision == self._local.peek(_costs(requirement), self._clock.now)
        return decision

    def _kept(self) -> list[Any]:
        """The stored states, byte for byte, and when they expire."""
        found = self._wire.ask(
            pack_command("KEYS", "*:state:*"), pack_command("KEYS", "*:entries:*")
        )
        names = [name for some in found for name in sorted(some)]
        commands = [pack_command(do, name) for name in names for do in ("DUMP", "PEXPIRETIME")]
        return [names, *self._wire.ask(*commands)]

    def _cost(self, limits: Sequence[Limit], share: int) -> int:
        burst = min(limit.burst for limit in limits if limit.algorithm != CONCURRENCY)
        return max(1, burst * MILLION * share // 1000)

    def _has_slots(self, which: Sequence[int]) -> bool:
        return any(
            limit.algorithm == CONCURRENCY for number in which for limit in self._limits[number]
        )


def _costs(requirement: Requirement) -> dict[LimitRef, Cost]:
    return {ref: units(cost) for ref, cost in zip(requirement.refs, requirement.costs, strict=True)}


@bounded(counted(400, (), 1))
@given(limits=any_names, asks=st.lists(asks, min_size=5, max_size=15))
def test_all_or_nothing(sides: Sides, limits: Names, asks: list[Ask]) -> None:
    sides.wire.ask(pack_command("FLUSHDB"))
    together(sides.wire, [Several(sides.wire, limits).play(asks)])


def test_a_refusal_by_the_last_leaves_the_first_untouched(sides: Sides) -> None:
    first = [(limit,) for limit in map(Limit.parse, FIRSTS)]
    for limits in first:
        sides.wire.ask(pack_command("FLUSHDB"))
        asks = [Ask("acquire", 3, 250), Ask("acquire", 2, 1000), Ask("acquire", 3, 250)]
        several = Several(sides.wire, [limits, (Limit.parse("4/h burst 4"),)])
        together(sides.wire, [several.play(asks)])


def test_a_slot_behind_a_delay_is_held_from_the_time_at_which_its_holder_begins(
    sides: Sides,
) -> None:
    limits = [("3/s burst 9 using leaky-queue",), ("3/s", "1 at once")]
    names = [tuple(map(Limit.parse, texts)) for texts in limits]
    several = Several(sides.wire, names)
    sides.wire.ask(pack_command("FLUSHDB"))
    together(sides.wire, [several.play([Ask("acquire", 1, 250), Ask("acquire", 3, 0)])])


FIRSTS = (
    "8/s burst 8",
    "8/s burst 8 using token-bucket",
    "8/s burst 8 using leaky-bucket",
    "8/s burst 8 using leaky-queue",
    "8/s using fixed-window",
    "8/d using fixed-window in Europe/Berlin",
    "8/s using sliding-log",
    "8/s using sliding-window parts 4",
)
