"""Numbers in words."""

from __future__ import annotations

import pytest

from celery_throttle.observe.text import amount, count


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
