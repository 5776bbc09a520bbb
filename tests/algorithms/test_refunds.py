"""What is reserved and settled: never more is left than if its true cost had been taken at once."""

from __future__ import annotations

from celery_throttle.changes import Plan
from celery_throttle.costs import MILLION
from celery_throttle.limits import FIRST_REQUEST, Limit
from celery_throttle.rates import MAX_EXACT, MAX_UNITS
from celery_throttle.reference import FixedWindow, Local
from celery_throttle.reference.local import current
from celery_throttle.reference.meters import Meter
from tests.algorithms.limits import METERS, RATES
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, full, settling


MOST = (MAX_UNITS + 1) * MILLION


class Truth:
    """The same limit, of which the true costs are taken, whatever it would have admitted."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._local = Local()
        self._local.define(side.ref, side.limit, side.clock.now)
        self._beyond = False

    def take(self, cost: int) -> None:
        local, side, now = self._local, self._side, self._side.clock.now
        states, _ = current(local._definitions[side.ref], local._states.get(side.ref), now)
        taken = tuple(state.take(side.limit, min(cost, MOST), now, now) for state in states)
        local._states[side.ref] = taken
        # A debt that is larger than what can be counted is forgiven.
        self._beyond |= any(
            isinstance(state, Meter) and state.used_then() > MAX_EXACT for state in taken
        )

    def _starts(self) -> int:
        states = [local._look(self._side.ref, 0, self._side.clock.now)[0].state for local in (self._side.local, self._local)]
        return len({state.start for state in states if isinstance(state, FixedWindow)})

    def compare(self) -> None:
        """From now on never more may be left than in truth."""
        if self._beyond:
            return
        side = self._side
        now, whole = side.clock.now, full(side.limit)
        # Where windows begin with a request, a debt of long ago may have begun one.
        if side.limit.window == FIRST_REQUEST and self._starts() != 1:
            return
        for later in (0, 1, whole // 3, whole // 2, whole - 1, whole, whole * 4 // 3):
            left, true = (
                local._look(side.ref, 0, now + later)[0].state.left(side.limit, now + later)[0]
                for local in (side.local, self._local)
            )
            assert left <= true, f"{left} left, in truth {true}, {later} us later, {side.limit}"


def compared(side: Side, trace: list[Step]) -> Plan[None]:
    """Play a trace, and compare whenever all is settled."""
    truth = Truth(side)
    for step in trace:
        held, admitted = len(side.held), len(side.admitted)
        yield from side.play(step)
        if len(side.held) > held:
            truth.take(side.held[-1].worth)
        elif len(side.admitted) > admitted:
            truth.take(side.admitted[-1].cost)
        if not side.held:
            truth.compare()
    while side.held:
        yield from side.settle(0)
    truth.compare()


@shown(300, RATES, settling)
def test_settled_is_at_most_as_if_the_cost_had_been_known(
    side: Side, trace: list[Step]
) -> Plan[None]:
    yield from compared(side, trace)


METERS_OF_TEN = [Limit.parse(f"10/10s burst 10 using {algorithm}") for algorithm in METERS]


def test_refunds_of_several_give_back_nothing_that_others_took(sides: Sides) -> None:
    """What is refunded of one makes the others drain earlier, so less is left of them."""
    trace = [
        Step("reserve", 500, worth=0),
        Step("reserve", 500, worth=0),
        Step("settle"),
        Step("advance", 500, span="full"),
        Step("acquire", 500),
        Step("advance", 1000, span="interval"),
        Step("settle"),
    ]
    sides.show(_is_true, METERS_OF_TEN, trace)


def test_refunds_in_any_order_give_all_back_that_is_left(sides: Sides) -> None:
    for order in ((0, 0), (1, 0)):
        trace = [
            Step("reserve", 500, worth=0),
            Step("reserve", 500, worth=0),
            *(Step("settle", which=which) for which in order),
        ]
        sides.show(_is_empty, METERS_OF_TEN, trace)


def _is_true(side: Side, trace: list[Step]) -> Plan[None]:
    yield from compared(side, trace)


def _is_empty(side: Side, trace: list[Step]) -> Plan[None]:
    for step in trace:
        yield from side.play(step)
    assert (yield from side.peek(side.limit.burst * MILLION))
