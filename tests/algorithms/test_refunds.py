"""Settled reservations: never more remains than if the actual cost had been taken at once."""

from __future__ import annotations

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.definition import adopt
from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.meters import MAX_REFUNDS, Meter
from celery_throttle.algorithms.state import State
from celery_throttle.algorithms.windows import FixedWindow
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MAX_EXACT
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.limit import MAX_ADAPTIVE_RATIO, Limit
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.store.script import pack_command
from tests.algorithms.limits import METERS, RATES
from tests.algorithms.properties import Property, Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, full, settling
from tests.algorithms.wire import Commands, Playing

MOST = (MAX_UNITS + 1) * MILLION


class Truth:
    """The same limit, from which the actual costs are taken, allowed or not."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._local = MemoryLimits()
        self._local.define(side.ref, side.limit, side.clock.now)
        self._beyond = False

    def take(self, cost: int) -> None:
        side, local, now = self._side, self._local, self._side.clock.now
        states, _ = adopt(local._definitions[side.ref], local._states.get(side.ref), now)
        taken = tuple(state.take(side.limit, min(cost, MOST), now, now) for state in states)
        local._states[side.ref] = taken

    def compare(self, *, settled: bool) -> None:
        """Once all is settled, no more may remain than with the actual costs."""
        limit, now, whole = self._side.limit, self._side.clock.now, full(self._side.limit)
        pair = self._states(now)
        # A debt that is larger than what can be counted is forgiven.
        self._beyond |= any(isinstance(state, Meter) and state.level >= MAX_EXACT for state in pair)
        self._beyond |= any(
            isinstance(state, Adaptive) and state.level >= MAX_EXACT // MAX_ADAPTIVE_RATIO
            for state in pair
        )
        # Where windows begin with a request, a debt of long ago may have begun one.
        starts = {state.start for state in pair if isinstance(state, FixedWindow)}
        if not settled or self._beyond or (limit.window == FIRST_REQUEST and len(starts) > 1):
            return
        for later in (0, whole // 3, max(0, whole - 1), whole * 4 // 3):
            left, true = (
                state.remaining_and_reset(limit, now + later)[0]
                for state in self._states(now + later)
            )
            assert left <= true, f"{left} left, in truth {true}, {later} us later, {limit}"

    def _states(self, now: int) -> list[State]:
        both = (self._side.local, self._local)
        return [local._check(self._side.ref, 0, now)[0].state for local in both]


def compared(side: Side, trace: list[Step]) -> Playing[None]:
    """Play a trace, and compare whenever all is settled."""
    truth = Truth(side)
    for step in (*trace, *(Step("settle") for _ in trace)):
        held, admitted = len(side.held), len(side.admitted)
        yield from side.play(step)
        if len(side.held) > held:
            truth.take(side.held[-1].worth)
        elif len(side.admitted) > admitted:
            truth.take(side.admitted[-1].cost)
        truth.compare(settled=not side.held)


@shown(200, RATES, settling)
def test_settled_is_at_most_as_if_the_cost_had_been_known(
    side: Side, trace: list[Step]
) -> Playing[None]:
    yield from compared(side, trace)


METERS_OF_TEN = [Limit.parse(f"10/10s burst 10 using {algorithm}") for algorithm in METERS]

#: Those whose later takes may drain earlier: a leaky-queue has promised their starts.
MOVABLE = [algorithm for algorithm in METERS if algorithm != "leaky-queue"]


def test_refunds_of_several_give_back_nothing_that_others_took(sides: Sides) -> None:
    """The refund of one makes the others drain earlier, so less of them is in use."""
    trace = [
        Step("reserve", 500, worth=0),
        Step("reserve", 500, worth=0),
        Step("settle"),
        Step("advance", 500, span="full"),
        Step("acquire", 500),
        Step("advance", 1000, span="interval"),
        Step("settle"),
    ]
    sides.show(compared, METERS_OF_TEN, trace)


def test_refunds_in_any_order_give_all_back_that_is_left(sides: Sides) -> None:
    for order in ((0, 0), (1, 0)):
        trace = [
            Step("reserve", 500, worth=0),
            Step("reserve", 500, worth=0),
            *(Step("settle", which=which) for which in order),
        ]
        limits = METERS_OF_TEN if order == (1, 0) else METERS_OF_TEN[: len(MOVABLE)]
        sides.show(_is_empty, limits, trace)


def test_a_leaky_queue_refunds_only_the_last_take(sides: Sides) -> None:
    queue = [Limit.parse("10/10s burst 10 using leaky-queue")]
    reserve = Step("reserve", 200, worth=0)
    for order, left in (((0, 0, 0), 6), ((1, 1, 0), 6), ((2, 0, 0), 8), ((2, 1, 0), 10)):
        trace = [*[reserve] * 3, *(Step("settle", which=which) for which in order)]
        sides.show(_has_left(left), queue, trace)


REFUNDED = [Limit.parse(f"100/100s burst 100 using {algorithm}") for algorithm in MOVABLE]
REFUNDED.append(Limit.parse("adaptive 10..100/100s burst 100"))


def test_takes_settled_last_to_first_get_all_back(sides: Sides) -> None:
    """A later take that was refunded holds no more than it kept."""
    reserve = [Step("reserve", 200, worth=200)] * 5
    for order in ((4, 3, 2, 1, 0), (0, 0, 0, 0, 0), (2, 0, 2, 1, 0)):
        trace = [*reserve, *(Step("settle", which=which) for which in order)]
        sides.show(_has_left(80), REFUNDED, trace)


def test_a_slow_take_gets_all_back_after_many_others(sides: Sides) -> None:
    """Also with takes before it that were refunded, and others after it that are not settled."""
    reserve, settle = Step("reserve", 20, worth=500), Step("settle")
    first = [*[reserve] * 4, *[settle] * 3]
    others = [Step("settle", which=2 + number % 2) for number in range(30)]
    rest = [settle] * 3
    trace = [*first, *[reserve] * 32, *others, *rest]
    sides.show(_has_left(64), REFUNDED, trace)


def _has_left(units: int) -> Property:
    def play(side: Side, trace: list[Step]) -> Playing[None]:
        for step in trace:
            yield from side.play(step)
        assert not side.held
        decision = yield from side.peek(0)
        assert decision.remaining == units

    return play


def test_of_many_refunds_the_oldest_are_kept_as_one(sides: Sides) -> None:
    """Beyond ten, so that states stay bounded; no more remains than with the actual costs."""
    reserve, settle = Step("reserve", 20, worth=300), Step("settle", which=3)
    trace = [*[reserve] * 40, *[settle] * 30, *[reserve] * 20, Step("advance", 300, span="full")]
    limits = [Limit.parse(f"100/10s burst 100 using {algorithm}") for algorithm in METERS]
    sides.show(compared, limits, trace)
    sides.show(_is_small, limits, trace)


def _is_small(side: Side, trace: list[Step]) -> Playing[None]:
    for step in trace:
        yield from side.play(step)
        (size,) = yield Commands([pack_command("STRLEN", side.plans.keys.state(side.ref))])
        assert size <= 8 + 3 + 6 * 8 + MAX_REFUNDS * 3 * 8


def test_what_is_owed_of_a_limit_that_has_changed_is_exact(sides: Sides) -> None:
    """An estimate far above the burst of the new limit."""
    trace = [
        Step("reserve", 1000, worth=1000),
        Step("advance", more=1),
        Step("define"),
        Step("settle"),
    ]
    limits = [Limit.parse("3/s burst 999999999")]
    for owed in (1, 2, 1_000_001):
        sides.show(_owes(owed), limits, trace, others=[Limit.parse("1/366d")])


def _owes(cost: int) -> Property:
    def play(side: Side, trace: list[Step]) -> Playing[None]:
        for step in trace:
            if step.do == "settle":
                (held,) = side.held
                side.held = [held._replace(worth=held.cost + cost)]
            yield from side.play(step)
        yield from side.peek(MILLION)

    return play


def _is_empty(side: Side, trace: list[Step]) -> Playing[None]:
    for step in trace:
        yield from side.play(step)
    assert (yield from side.peek(side.limit.burst * MILLION))
