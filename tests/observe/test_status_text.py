"""Limits, tasks and fan-outs in words."""

from __future__ import annotations

import pytest

from celery_throttle.observe import status_text


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
