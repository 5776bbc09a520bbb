"""Limits, tasks and fan-outs in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_throttle.observe import status_text
from celery_throttle.observe.forecasts.solver import Cause, Forecast


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
    ("unknown", "limit", "cause", "expected"),
    [
        (0, "mail", "limit", "limited by mail"),
        (9, None, "workers", "no live worker consumes the queue of 9 tasks"),
        (
            2,
            "mail",
            "pause",
            "2 tasks need mail or a key of it, which is paused until it is resumed",
        ),
        (2, None, "pause", "the fan-out of the tasks is paused"),
        (9, None, "processes", "no process takes the tasks"),
        (1, "mail", "slots", "1 task needs a slot of mail, and nobody knows when one is released"),
        (0, None, "lines", "more than 2,000 lines wait, and not all were looked at"),
        (0, None, None, ""),
    ],
)
def test_the_cause_of_an_end(
    unknown: int, limit: str | None, cause: Cause | None, expected: str
) -> None:
    found = Forecast(9, None, None, None, unknown, limit, cause)
    assert status_text.cause_text(found) == expected
    if cause == "slots":
        found = replace(found, seconds=2.5, unknown=0)
        assert status_text.cause_text(found) == "limited by the slots of mail"
