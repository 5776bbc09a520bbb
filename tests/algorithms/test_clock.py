"""A clock that stands still, or swings, admits no more than real time would."""

from __future__ import annotations

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import METERS, SECOND
from tests.algorithms.properties import Sides
from tests.algorithms.sides import Side
from tests.algorithms.test_bounds import most_in
from tests.algorithms.traces import Step

TEN = 10 * MILLION
LIMITS = [
    *(Limit.parse(f"10/10s burst 10 using {algorithm}") for algorithm in METERS),
    Limit.parse("10/10s using fixed-window"),
    Limit.parse("10/10s using fixed-window from first-request"),
    Limit.parse("10/10s using sliding-log"),
    Limit.parse("10/10s using sliding-window"),
    Limit.parse("10/10s using sliding-window parts 5"),
    Limit.parse("10/10s using sliding-window parts 5 oldest dropped"),
]
DAYS = [
    Limit.parse(f"10/d using fixed-window in {zone}") for zone in ("UTC", "America/Los_Angeles")
]


def test_a_clock_that_stands_still_gives_the_burst_and_no_more(sides: Sides) -> None:
    sides.show(_stands_still, [*LIMITS, *DAYS], [])


def _stands_still(side: Side, _trace: list[Step]) -> Plan[None]:
    for _ in range(20):
        yield from side.acquire(MILLION)
    assert sum(one.cost for one in side.admitted) == TEN


def test_a_clock_that_swings_over_an_edge_gives_next_to_nothing(sides: Sides) -> None:
    """Forty times across the start of a window and of all its parts, within 2.4 seconds."""
    sides.show(_swings, LIMITS, [], start=1_700_000_000 * SECOND + 30_000)
    sides.show(_swings, [Limit.parse("10/d using fixed-window in UTC")], [], start=_midnight())


def _midnight() -> int:
    day = 86_400 * SECOND
    return 1_700_000_000 * SECOND // day * day + 30_000


def _swings(side: Side, _trace: list[Step]) -> Plan[None]:
    for _ in range(40):
        for step in (-60_000, 60_000):
            # Not whole units: a sliding window has some room at once.
            yield from side.acquire_up_to(TEN - 1)
            side.clock.now += step
        side.passed += 60_000
    # A window that ends, and what drains in these seconds.
    assert sum(one.cost for one in side.admitted) <= 2 * TEN + side.passed


def test_a_step_back_over_an_edge_makes_no_third_window(sides: Sides) -> None:
    """The units in use must end with a window, or a short window would follow."""
    sides.show(_third_window, LIMITS, [], start=1_700_000_000 * SECOND + 30_000)


def _third_window(side: Side, _: list[Step]) -> Plan[None]:
    yield from side.acquire(MILLION)
    side.clock.now -= 60_000
    yield from side.peek(MILLION)
    for us in (9_990_000, 10_000, 30_000):
        side.advance(us)
        yield from side.acquire_up_to(9 * MILLION)
        yield from side.acquire_up_to(TEN)
    assert most_in(side.admitted, 10 * SECOND) <= 2 * TEN


def test_a_small_step_back_over_an_edge_costs_no_more_than_the_step(sides: Sides) -> None:
    start = 1_700_000_000 * SECOND
    sides.show(_small_step, LIMITS, [], start=start)
    sides.show(_small_step, [Limit.parse("10/d using fixed-window in UTC")], [], start=start)


def _small_step(side: Side, _trace: list[Step]) -> Plan[None]:
    yield from side.acquire(5 * MILLION)
    side.clock.now -= MAX_BOOKING_US
    decision = yield from side.acquire(5 * MILLION)
    assert decision or side.wait <= MAX_BOOKING_US
    side.clock.now += MAX_BOOKING_US
    assert decision or (yield from side.acquire(5 * MILLION))
