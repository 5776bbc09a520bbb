"""Durations as users write them."""

from __future__ import annotations

import re
from decimal import Decimal

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.rate import MAX_EXACT, UNITS

_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]+)", re.ASCII)


def parse_duration(text: str) -> int:
    """Parse ``"60s"``, ``"0.5s"``, ``"2m"``; return microseconds.

    Raises:
        LimitValueError: the text has another form, is no whole microseconds, or too long.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        units = ", ".join(reversed(UNITS))
        raise LimitValueError(
            f"{shown(text)} is no duration; allowed: a number and one of {units}, such as '0.5s'"
        )
    us = Decimal(match[1]) * unit
    if not 1 <= us <= MAX_EXACT or us % 1:
        raise LimitValueError(
            f"duration {shown(text)} is out of range; allowed: whole microseconds, 1 or more"
        )
    return int(us)
