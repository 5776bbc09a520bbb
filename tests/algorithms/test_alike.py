"""GCRA, token bucket and leaky bucket make the same decisions; the leaky queue adds a delay."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.limits.decision import Decision
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import LIMITS, METERS
from tests.algorithms.properties import Sides, bounded, counted
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, traces

EXAMPLES = counted(300, METERS, 1)


@bounded(EXAMPLES)
@given(
    limit=st.one_of(*LIMITS["gcra"]),
    trace=traces(acquire=4, peek=1, upto=1, advance=4, reserve=1, settle=1, back=1),
)
def test_all_meters_decide_alike(sides: Sides, limit: Limit, trace: list[Step]) -> None:
    told: dict[str, list[Decision]] = {algorithm: [] for algorithm in METERS}

    def play(side: Side, trace: list[Step]) -> Plan[None]:
        for step in trace:
            yield from side.play(step)
            decision = yield from side.peek(0)
            told[side.limit.algorithm].append(decision._replace(delay=0.0, limited_by=None))

    sides.show(play, [replace(limit, algorithm=algorithm) for algorithm in METERS], trace)
    assert told["gcra"] == told["token-bucket"] == told["leaky-bucket"]
    # A queue refunds nothing of a take before the last one.
    alike = next((at for at, step in enumerate(trace) if step.do == "settle"), len(trace))
    assert told["leaky-queue"][:alike] == told["gcra"][:alike]
