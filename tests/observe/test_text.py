"""Numbers and changes in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status_text import change_text, limit_text
from celery_throttle.observe.text import amount, count, describe_change, describe_subject
from celery_throttle.observe.values import Change
from celery_throttle.operations.author import Author
from celery_throttle.store.keys import Keys, fan_out_ref


@pytest.mark.parametrize(
    ("units", "expected"), [(0.0, "0"), (12_000.0, "12,000"), (0.25, "0.25"), (1.0004, "1")]
)
def test_amounts(units: float, expected: str) -> None:
    assert amount(units) == expected


def test_amounts_of_fewer_decimals() -> None:
    assert [amount(units, 1) for units in (0.0, 2.26, 1_200.04)] == ["0", "2.3", "1,200"]


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


@pytest.mark.parametrize(
    ("ref", "of_status", "of_change"),
    [
        (LimitRef("fan-out", None), "limit fan-out", "fan-out"),
        (LimitRef("fan-out", "t%207"), "limit fan-out of key t 7", "fan-out:t 7"),
        (fan_out_ref("letters 2"), "fan-out letters 2", "fan-out letters 2"),
    ],
)
def test_a_limit_may_have_the_name_fan_out(ref: LimitRef, of_status: str, of_change: str) -> None:
    assert limit_text(*ref) == of_status
    assert describe_subject(Keys.field(ref)) == of_change
