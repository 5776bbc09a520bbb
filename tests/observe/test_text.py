"""Numbers and changes in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_throttle.observe.status_text import change_text
from celery_throttle.observe.text import amount, count, describe_change
from celery_throttle.observe.values import Change
from celery_throttle.operations.author import Author


@pytest.mark.parametrize(
    ("units", "expected"), [(0.0, "0"), (12_000.0, "12,000"), (0.25, "0.25"), (1.0004, "1")]
)
def test_amounts(units: float, expected: str) -> None:
    assert amount(units) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "0 keys"), (1, "1 key"), (1.0, "1 key"), (1_200, "1,200 keys"), (0.5, "0.5 keys")],
)
def test_numbers_with_a_noun(number: float, expected: str) -> None:
    assert count(number, "key") == expected


def test_a_change_with_an_end() -> None:
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    change = Change(
        "1-0", at, "define", "api", "10/s", "20/s", Author("ann"), at + timedelta(hours=1)
    )
    assert describe_change(change) == "api: 20/s for 1 h instead of 10/s by ann"
    assert change_text(change) == "10/s -> 20/s for 1 h"
