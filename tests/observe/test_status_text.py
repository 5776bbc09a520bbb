"""Limits, tasks and fan-outs in words."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from celery_throttle.observe import status_text
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.totals import Totals
from celery_throttle.observe.values import LimitStatus, Pause


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (112, "112th"),
        (1021, "1,021st"),
    ],
)
def test_ordinals(number: int, expected: str) -> None:
    assert status_text.ordinal(number) == expected


@pytest.mark.parametrize(
    ("clauses", "paused_keys", "expected"),
    [
        (("2 at once max-waiting 5",), 1, "limit mail has slots, or a pause without an end"),
        (("20/m", "2 at once max-waiting 5"), 0, "limit mail has slots, or a pause without an end"),
        (("20/m max-waiting 5",), 1, "limit mail has 1 paused key"),
        (("20/m max-waiting 5",), 2, "limit mail has 2 paused keys"),
        (("20/m max-waiting 5",), 0, "limit mail has slots, or a pause without an end"),
    ],
)
def test_the_cause_of_an_end_that_is_unknown(
    clauses: tuple[str, ...], paused_keys: int, expected: str
) -> None:
    assert status_text.end_cause(waiting_status(clauses, paused_keys)) == expected


def test_a_pause_without_an_end_is_the_cause() -> None:
    pause = Pause("mail", None, inf, None, None, None)
    status = replace(waiting_status(("2 at once max-waiting 5",), 1), pauses=(pause,))
    assert status_text.end_cause(status) == "it is paused until it is resumed"


def waiting_status(clauses: tuple[str, ...], paused_keys: int) -> LimitStatus:
    """Return the status of a limit with three waiting tasks whose end nobody knows."""
    return LimitStatus(
        name="mail",
        key=None,
        defined=True,
        clauses=clauses,
        origin=None,
        weight=1,
        usage=(),
        pauses=(),
        paused_keys=paused_keys,
        own_keys=0,
        has_keys=True,
        waiting=3,
        waiting_keys=2,
        runnable=0,
        oldest=1.0,
        forecast=Forecast(3, None, None, "mail"),
        totals=Totals(),
    )
