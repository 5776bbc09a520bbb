"""A request passes exactly after retry_after, and not a microsecond earlier."""

from __future__ import annotations

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MAX_EXACT
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import EVERY
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, settling, steady, traces


def exactly(side: Side, cost: int, wait: int) -> Plan[None]:
    """Check the end of the wait for a cost."""
    now = side.clock.now
    if now + wait > MAX_EXACT:  # the year 2112
        return
    assert wait >= 1
    side.clock.now = now + wait - 1
    assert not (yield from side.peek(cost)), "passes too early"
    side.clock.now = now + wait
    assert (yield from side.peek(cost)), "does not pass"
    side.clock.now, side.wait = now, wait


def refused(side: Side) -> Plan[None]:
    """Request the full burst, and check the end of the wait."""
    cost = side.limit.burst * MILLION
    decision = yield from side.acquire(cost)
    if not decision:
        yield from exactly(side, cost, side.wait)


@shown(400, EVERY, steady)
def test_a_wait_is_exact(side: Side, trace: list[Step]) -> Plan[None]:
    for step in trace:
        decision = yield from side.play(step)
        if step.do in ("acquire", "peek") and decision is not None and not decision:
            cost = step.cost(side.limit, least=int(step.do == "acquire"))
            yield from exactly(side, cost, side.wait)


@shown(300, EVERY, traces(acquire=4, advance=3, upto=1, back=2, define=1), defining=True)
def test_a_wait_is_exact_after_a_change_and_a_clock_that_stepped_back(
    side: Side, trace: list[Step]
) -> Plan[None]:
    for step in trace:
        yield from side.play(step)
    yield from refused(side)


@shown(150, EVERY, settling)
def test_a_wait_is_exact_when_there_were_refunds_and_debts(
    side: Side, trace: list[Step]
) -> Plan[None]:
    for step in trace:
        yield from side.play(step)
    yield from refused(side)


# Figures that were wrong once.


def test_a_slow_limit_made_fast_does_not_hold_up_any_longer(sides: Sides) -> None:
    trace = [Step("acquire"), Step("define")]
    for before, after in (("1/h", "100/s"), ("100/s burst 100", "100/s")):
        limits, others = [Limit.parse(before)], [Limit.parse(after)]
        for key in (None, "key"):
            sides.show(_ends_refused, limits, trace, key=key, others=others)


def test_a_clock_that_stepped_back_an_hour(sides: Sides) -> None:
    trace = [Step("acquire"), Step("back", more=3_600_000_000)]
    sides.show(_ends_refused, [Limit.parse("1/s")], trace)


def test_a_change_while_the_clock_is_behind_the_ones_before(sides: Sides) -> None:
    """Units that counted at that moment stay in use, whatever they would have been later."""
    limit = Limit.parse("1/5s using sliding-window oldest dropped")
    others = [Limit.parse("3/s"), Limit.parse("100/s")]
    trace = [Step("acquire"), Step("back", more=20_001), Step("acquire")]
    for changes in (1, 2, 3):
        defined = [Step("define", which=number % 2) for number in range(changes)]
        sides.show(_ends_refused, [limit], trace + defined, key="key", others=others)


def test_units_of_a_calendar_window_that_is_not_known_any_more_count_no_longer(
    sides: Sides,
) -> None:
    """The windows are known from the last definition on, and the clock stepped back before it."""
    others = [Limit.parse("1/d using fixed-window at 07:30 in UTC")]
    back = [Step("define"), Step("back", more=8 * 3_600_000_000), Step("acquire")]
    trace = [Step("acquire"), Step("define"), Step("advance", more=60 * 3_600_000_000), *back]
    sides.show(
        _ends_refused, [Limit.parse("3/s using sliding-log")], trace, key="key", others=others
    )


def _ends_refused(side: Side, trace: list[Step]) -> Plan[None]:
    for step in trace:
        yield from side.play(step)
    yield from refused(side)
