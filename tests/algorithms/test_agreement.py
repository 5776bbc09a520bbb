"""The scripts on the server against the reference: every step, to the microsecond."""

from __future__ import annotations

from celery_throttle.changes import Plan
from tests.algorithms.limits import EVERY
from tests.algorithms.properties import shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, everything


@shown(1000, EVERY, everything)
def test_server_and_reference_agree(side: Side, trace: list[Step]) -> Plan[None]:
    """Whatever happens: the clock stands still or steps back, another limit comes into force.

    A limit that is defined itself is converted at once, the key of one when it is read.
    """
    for step in trace:
        yield from side.play(step)
    yield from side.peek(0)
