"""What messages say of a wrong name."""

from __future__ import annotations

import pytest

from celery_throttle.errors import nearest


@pytest.mark.parametrize(
    ("name", "known", "advice"),
    [
        ("strpe", ["mail", "stripe"], "write 'stripe'"),
        ("x", ["mail", "stripe"], "allowed: 'mail', 'stripe'"),
        ("x", [], "allowed: none"),
        ("x", (f"mail{n:02}" for n in range(23)), "'mail18', 'mail19' and 3 more"),
    ],
)
def test_the_nearest_name_or_the_first_ones(name: str, known: list[str], advice: str) -> None:
    assert nearest(name, known).endswith(advice)
