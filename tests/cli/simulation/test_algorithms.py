"""Examples from the literature, and guarantees of the algorithms for any trace."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.simulation.run import SimulatedRun, figures, fullest, run_trace
from celery_throttle.cli.simulation.traces import Arrival, Trace
from celery_throttle.errors import CostError
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from tests.sizes import examples

SECOND = 1_000_000
SEVEN = (5, 15, 61, 70, 100, 110, 140)


def played(
    limit: str, times: Sequence[float], *, in_line: bool = False, seconds: float = 0
) -> SimulatedRun:
    trace = Trace.of("test", [Arrival(round(at * SECOND)) for at in times])
    slot_us = round(seconds * SECOND)
    return run_trace(trace, Limit.parse(limit), in_line=in_line, slot_us=slot_us)


def refused(run: SimulatedRun) -> list[float]:
    return [arrival.time / SECOND for arrival in run.refused]


def starts(run: SimulatedRun) -> list[float]:
    return [start / SECOND for start, _ in run.admitted]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("3/m using fixed-window", [110]),
        ("3/m using sliding-log", [110]),
        ("3/m using sliding-window parts 4 oldest dropped", [110]),
        ("3/m burst 3 using leaky-bucket", []),
        ("3/m burst 3 using token-bucket", []),
        ("3/m burst 3", []),
        ("3/m using fixed-window from first-request", []),
    ],
)
def test_three_a_minute_for_seven_requests(limit: str, expected: list[float]) -> None:
    assert refused(played(limit, SEVEN)) == expected


def test_a_refusal_tells_when_it_could_pass() -> None:
    outcomes = played("3/m using sliding-log", SEVEN).outcomes
    assert [one.retry_after for one in outcomes if one.start is None] == [11 * SECOND]


def test_a_refused_request_waits_in_line() -> None:
    run = played("1/s", [0, 0, 0, 2.5], in_line=True)
    assert starts(run) == [0, 1, 2, 3]
    assert [one.wait for one in run.outcomes] == [0, SECOND, 2 * SECOND, SECOND // 2]


def test_the_line_is_first_come_first_served_whatever_they_cost() -> None:
    arrivals = [Arrival(0, 2), Arrival(0, 2), Arrival(0, 1)]
    run = run_trace(Trace.of("test", arrivals), Limit.parse("1/s burst 2"), in_line=True)
    assert [(start, arrival.cost) for start, arrival in run.admitted] == [
        (0, 2),
        (2 * SECOND, 2),
        (3 * SECOND, 1),
    ]


def test_a_queue_gives_a_delay_and_is_full() -> None:
    run = played("1/s burst 3 using leaky-queue", [0] * 4)
    assert starts(run) == [0, 1, 2]
    assert refused(run) == [0]
    assert figures(run)["wait_max_s"] == 2


def test_what_waits_for_a_queue_and_what_has_not_leaked_have_room_for_its_burst() -> None:
    run = played("1/s burst 3 using leaky-queue", [0] * 5 + [1.5], in_line=True)
    assert starts(run) == [0, 1, 2, 3]  # the last comes when one waits and one has half leaked
    assert refused(run) == [0, 0]


@pytest.mark.parametrize("seconds", [0.5, 45])  # the second is longer than a lease
def test_slots_are_held_as_long_as_one_says(seconds: float) -> None:
    drop = played(
        "2 at once", [0, 0.1, 0.2, seconds, seconds + 0.05, seconds + 0.1], seconds=seconds
    )
    assert refused(drop) == [0.2, seconds + 0.05]
    wait = played("2 at once", [0] * 5, in_line=True, seconds=seconds)
    assert starts(wait) == [0, 0, seconds, seconds, 2 * seconds]
    assert figures(wait)["fullest_window"] == 2
    assert figures(wait)["window_s"] is None


def test_slots_need_a_duration() -> None:
    with pytest.raises(CommandError, match=r"'2 at once' has slots.*allowed: with --duration"):
        played("2 at once", [0])


def test_a_cost_that_can_never_pass_is_an_error() -> None:
    trace = Trace.of("test", [Arrival(0, 5)])
    for in_line in (False, True):
        with pytest.raises(CostError, match=r"cost 5 can never pass.*at most 3"):
            run_trace(trace, Limit.parse("1/s burst 3"), in_line=in_line)


def test_percentiles_are_waits_that_there_were() -> None:
    about = figures(played("1/s", [0] * 100, in_line=True))
    waits = (about["wait_p50_s"], about["wait_p95_s"], about["wait_p99_s"], about["wait_max_s"])
    assert waits == (49, 94, 98, 99)


def test_the_fullest_window_is_half_open_and_counts_units() -> None:
    arrivals = [Arrival(0, 2), Arrival(SECOND - 1, 1.5), Arrival(SECOND, 1)]
    run = run_trace(Trace.of("test", arrivals), Limit.parse("9/s using fixed-window"))
    assert fullest(run) == (3_500_000, 0)
    assert figures(run)["fullest_window"] == 3.5
    assert figures(run)["window_s"] == 1


# The worst cases in docs/concepts/algorithms.md, for 12 per minute: the most in one minute, and in
# three quarters of one.
@pytest.mark.parametrize(
    ("limit", "in_period", "in_most_of_it"),
    [
        ("12/m", 12, 9),
        ("12/m burst 12", 23, 20),
        ("12/m burst 12 using token-bucket", 23, 20),
        ("12/m burst 12 using leaky-bucket", 23, 20),
        ("12/m burst 12 using leaky-queue", 12, 9),
        ("12/m using fixed-window", 24, 24),
        ("12/m using fixed-window from first-request", 24, 24),
        ("12/m using sliding-log", 12, 12),
        ("12/m using sliding-window", 23, 23),
        ("12/m using sliding-window parts 4", 23, 12),
        ("12/m using sliding-window parts 4 oldest dropped", 24, 12),
    ],
)
@settings(max_examples=examples(60))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([1, 15_000_000, 14_999_999, 45_000_000, 59_999_999])
            | st.integers(0, 60_000_000),
            st.sampled_from([1, 3, 12]),
        ),
        max_size=25,
    ),
    background=st.booleans(),
)
def test_no_trace_is_worse_than_the_worst_case(
    limit: str,
    in_period: int,
    in_most_of_it: int,
    steps: list[tuple[int, int]],
    background: bool,  # noqa: FBT001  # hypothesis passes by name
) -> None:
    at, arrivals = 0, [Arrival(0)]
    for step, count in steps:
        at += step
        arrivals += [Arrival(at)] * count
    if background:
        arrivals += [Arrival(time) for time in range(0, at, SECOND)]
    run = run_trace(Trace.of("test", arrivals), Limit.parse(limit))
    times = sorted(start for start, _ in run.admitted)
    for first, start in enumerate(times):
        after = [time - start for time in times[first:]]
        assert sum(time < 60 * SECOND for time in after) <= in_period
        assert sum(time < 45 * SECOND for time in after) <= in_most_of_it
    assert fullest(run)[0] <= in_period * MILLION
