"""What is reserved and settled: never more is left than if its true cost had been taken at once."""

from __future__ import annotations

from celery_throttle.changes import Plan
from celery_throttle.costs import MILLION
from celery_throttle.limits import Limit
from celery_throttle.reference import Local
from celery_throttle.reference.local import current
from tests.algorithms.limits import METERS, RATES
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, full, settling


class Truth:
    """The same limit, of which the true costs are taken, whatever it would have admitted."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._local = Local()
        self._local.define(side.ref, side.limit, side.clock.now)

    def take(self, cost: int) -> None:
        if cost:
            local, side = self._local, self._side
            states, _ = current(
                local._definitions[side.ref], local._states.get(side.ref), side.clock.now
            )
            local._states[side.ref] = tuple(
                state.take(side.limit, cost, side.clock.now, side.clock.now) for state in states
            )

    def compare(self) -> None:
        """From now on never more may be left than in truth."""
        side = self._side
        now, whole = side.clock.now, full(side.limit)
        for later in (0, 1, whole // 3, whole // 2, whole - 1, whole, whole * 4 // 3):
            left, true = (
                local._look(side.ref, 0, now + later)[0].state.left(side.limit, now + later)[0]
                for local in (side.local, self._local)
            )
            assert left <= true, f"{left} left, in truth {true}, {later} us later, {side.limit}"


@shown(300, RATES, settling)
def test_settled_is_at_most_as_if_the_cost_had_been_known(
    side: Side, trace: list[Step]
) -> Plan[None]:
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
