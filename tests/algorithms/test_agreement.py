"""The scripts on the server and their Python twins agree at every step, to the microsecond."""

from __future__ import annotations

import pytest

from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.limits.rate import Rate
from tests.algorithms.limits import EVERY, RATES
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step, everything
from tests.algorithms.wire import Playing


@shown(600, EVERY, everything, defining=True)
def test_server_and_reference_agree(side: Side, trace: list[Step]) -> Playing[None]:
    """Also if the clock stands still or is set back, or the limit changes.

    A limit that is defined itself is converted at once, the key of one when it is read.
    """
    yield from play(side, trace)


def play(side: Side, trace: list[Step]) -> Playing[None]:
    for step in trace:
        yield from side.play(step)
    yield from side.peek(0)


@pytest.mark.parametrize("key", [None, "key"])
def test_the_largest_that_can_be_written(sides: Sides, key: str | None) -> None:
    """Sums of it must stay exact in a double."""
    limits, others = [Limit.parse("3/s burst 1000000000")], [Limit(Rate(3, 2**44), 256)]
    trace = [
        Step("acquire", 1),
        Step("define"),
        Step("advance", more=1),
        Step("acquire", 1000),
    ]
    sides.show(play, limits, trace, key=key, others=others)


@pytest.mark.parametrize("key", [None, "key"])
def test_the_same_limit_once_more_changes_nothing(sides: Sides, key: str | None) -> None:
    """Not even the times, before and after the clock is set back."""
    back = [Step("advance", more=1), Step("define"), Step("back", more=MAX_BOOKING_US + 1)]
    again = [Step("back", more=MAX_BOOKING_US + 1), Step("define"), Step("advance", more=1)]
    for algorithm in RATES:
        limits = [limit for limit in map(Limit.parse, SAME) if limit.algorithm == algorithm]
        for trace in (back, again):
            sides.show(play, limits, [Step("acquire"), *trace], key=key, others=limits)


@pytest.mark.parametrize("key", [None, "key"])
def test_another_algorithm_in_the_same_microsecond(sides: Sides, key: str | None) -> None:
    limits = [Limit.parse(text) for text in ("3/s burst 10", "3/s burst 10 using leaky-bucket")]
    others = [Limit.parse("3/s using token-bucket")]
    sides.show(play, limits, [Step("acquire")] * 2 + [Step("define")], key=key, others=others)


def test_a_log_of_which_nothing_counts_is_empty_after_a_step_back(sides: Sides) -> None:
    trace = [Step("reserve", worth=0), Step("settle"), Step("back", more=MAX_BOOKING_US + 1)]
    sides.show(play, [Limit.parse("3/s using sliding-log")], trace)


def test_a_settled_admission_of_a_log_that_was_moved_back(sides: Sides) -> None:
    """It is in the log no more, also if the time is less than a period after 0."""
    limit = Limit.parse("999999937/d using sliding-log")
    trace = [
        Step("acquire", share=1),
        Step("advance", share=500, span="next"),
        Step("upto", share=999, more=1),
        Step("reserve", more=333_333, worth=3000),
        Step("back", more=MAX_BOOKING_US + 1),
        Step("settle"),
    ]
    sides.show(play, [limit], trace, start=0)


def test_a_sliding_window_in_which_nothing_counts_begins_anywhere(sides: Sides) -> None:
    """Even if the clock is set back to the window before."""
    limits = [Limit.parse(f"3/s using sliding-window{rest}") for rest in ("", " parts 5")]
    over_an_edge = Step("back", 1000, 1, "last")
    nothing_left = [Step("acquire"), Step("advance", 5000, span="full"), Step("define")]
    refunded = [Step("reserve", worth=0), over_an_edge, Step("settle")]
    for trace in ([*nothing_left, over_an_edge], refunded):
        for key in (None, "key"):
            sides.show(play, limits, [*trace, Step("acquire")], key=key, others=limits)


SAME = (
    "3/s",
    "3/s using token-bucket",
    "3/s using leaky-bucket",
    "3/s using leaky-queue",
    "3/s using fixed-window",
    "3/s using sliding-log",
    "3/s using sliding-window",
)
