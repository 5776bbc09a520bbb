"""Worked examples of the literature, on the server and in the Python twin."""

from __future__ import annotations

import pytest

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import SECOND
from tests.algorithms.properties import Sides
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step

#: A time at which a minute begins, and an hour.
MINUTE = 1_700_000_000 * SECOND // (3600 * SECOND) * 3600 * SECOND


def admitted(sides: Sides, limit: str, requests: list[tuple[float, int]]) -> list[int]:
    """Return how many requests of one unit are admitted, at each of some seconds."""
    counts: list[int] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for at, requested in requests:
            side.clock.now = MINUTE + round(at * SECOND)
            counts.append(0)
            for _ in range(requested):
                decision = yield from side.acquire(MILLION)
                counts[-1] += bool(decision)

    sides.show(ask, [Limit.parse(limit)], [], start=MINUTE)
    return counts


def refused(sides: Sides, limit: str, times: list[float]) -> list[float]:
    counts = admitted(sides, limit, [(at, 1) for at in times])
    return [at for at, count in zip(times, counts, strict=True) if not count]


# Three requests a minute; requests at 0:05, 0:15, 1:01, 1:10, 1:40, 1:50 and 2:20.
SEVEN = [5.0, 15.0, 61.0, 70.0, 100.0, 110.0, 140.0]


@pytest.mark.parametrize(
    "limit",
    [
        "3/m using fixed-window",
        "3/m using sliding-log",
        "3/m using sliding-window parts 4 oldest dropped",
    ],
)
def test_the_fourth_of_its_minute_is_refused(sides: Sides, limit: str) -> None:
    assert refused(sides, limit, SEVEN) == [110.0]


def test_a_bucket_of_three_that_loses_one_every_twenty_seconds_refuses_none(sides: Sides) -> None:
    assert refused(sides, "3/m burst 3 using leaky-bucket", SEVEN) == []


def test_a_window_from_the_first_request_begins_where_the_requests_do(sides: Sides) -> None:
    """From 0:05 and from 1:10 on, each with three; from 2:20 on again."""
    assert refused(sides, "3/m using fixed-window from first-request", SEVEN) == []
    times = [5.0, 15.0, 61.0, 64.9, 65.0]
    assert refused(sides, "3/m using fixed-window from first-request", times) == [64.9]


# Two counters: that of the minute before counts by what of it lies within one minute.


@pytest.mark.parametrize(("then", "pass_then"), [(75.0, 25), (105.0, 75)])
def test_a_hundred_at_once_keep_others_out_of_the_next_minute(
    sides: Sides, then: float, pass_then: int
) -> None:
    requests = [(14.0, 120), (59.999, 1), (60.0, 1), (then, 100)]
    counts = admitted(sides, "100/m using sliding-window", requests)
    assert counts == [100, 0, 0, pass_then]


def test_five_in_the_minute_before_and_three_in_this(sides: Sides) -> None:
    """30% into the minute 0.7 x 5 + 3 = 6.5 of 7 are in use.

    With a request among the three that makes them three, that one passes and the next does not. One
    on top of 6.5 would make it 7.5, which other authors round down and let pass.
    """
    requests = [(30.0, 5), (70.0, 2), (78.0, 1), (78.0, 1)]
    assert admitted(sides, "7/m using sliding-window", requests) == [5, 2, 1, 0]
    # Where 0.6 x 5 + 3 + 1 makes 7, that is 40% into the minute.
    requests = [(30.0, 5), (78.0, 3), (83.999, 1), (84.0, 2)]
    assert admitted(sides, "7/m using sliding-window", requests) == [5, 3, 0, 1]


def test_an_edge_between_two_fixed_windows_lets_twice_the_count_pass(sides: Sides) -> None:
    edges = [(59.999, 10), (60.0, 10), (60.001, 10)]
    assert admitted(sides, "5/m using fixed-window", edges) == [5, 5, 0]
    assert admitted(sides, "5/m using sliding-log", edges) == [5, 0, 0]
    assert admitted(sides, "5/m using sliding-window", edges) == [5, 0, 0]


# GCRA at 100 a second with a burst of 5.


def test_cells_at_their_rate_all_conform(sides: Sides) -> None:
    spaced = [number * 0.01 for number in range(50)]
    assert refused(sides, "100/s burst 5", spaced) == []
    assert refused(sides, "100/s", spaced) == []


def test_five_cells_at_once_conform_and_then_one_every_ten_milliseconds(sides: Sides) -> None:
    requests = [(0.0, 9), (0.009999, 1), (0.01, 2), (0.03, 3), (1.0, 9)]
    assert admitted(sides, "100/s burst 5", requests) == [5, 0, 1, 2, 5]


def test_cells_that_come_twice_too_fast_conform_until_the_burst_is_used(sides: Sides) -> None:
    """After 9 cells, 40 ms, 4 have drained and 5 are in use: then every other one passes."""
    fast = [number * 0.005 for number in range(20)]
    late = refused(sides, "100/s burst 5", fast)
    assert late == [number * 0.005 for number in (9, 11, 13, 15, 17, 19)]


def test_a_queue_makes_of_a_burst_starts_at_its_rate(sides: Sides) -> None:
    delays: list[float] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(5):
            decision = yield from side.acquire(MILLION)
            delays.append(decision.delay)
        assert not (yield from side.acquire(MILLION))
        assert side.wait == 10_000

    sides.show(ask, [Limit.parse("100/s burst 5 using leaky-queue")], [])
    assert delays == [0.0, 0.01, 0.02, 0.03, 0.04]


def test_ten_at_once(sides: Sides) -> None:
    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(10):
            assert (yield from side.acquire(MILLION))
            side.clock.now += SECOND
        assert not (yield from side.acquire(MILLION))
        assert side.wait == 20 * SECOND  # the first one's lease is over then
        yield from side.settle(4)
        assert (yield from side.acquire(MILLION))
        assert not (yield from side.acquire(MILLION))
        side.clock.now += 20 * SECOND
        assert (yield from side.acquire(MILLION))

    sides.show(ask, [Limit.parse("10 at once")], [])
