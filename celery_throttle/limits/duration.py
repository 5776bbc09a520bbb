"""Durations: seconds in Python, whole microseconds in the scripts."""

from __future__ import annotations

import math

from celery_throttle.errors import LimitValueError, shown

#: Microseconds in a second.
MICROSECONDS = 1_000_000

#: The longest wait or pause, in seconds: about thirty years.
_MAX_SECONDS = 1e9

#: Microseconds of a pause that lasts until it is resumed. It is stored as any pause is, under a key
#: that expires. A wait of more than half of it is a wait for ``resume``.
ENDLESS_US = 10**15


def to_us(seconds: float) -> int:
    """Convert seconds to whole microseconds."""
    return round(seconds * MICROSECONDS)


def pause_to_seconds(us: int) -> float:
    """Convert the microseconds of a pause to seconds: infinity if it lasts until it is resumed."""
    return math.inf if is_endless(us) else us / MICROSECONDS


def wait_to_seconds(us: int) -> float | None:
    """Convert the microseconds of a wait to seconds: None if it lasts until a pause is resumed."""
    return None if is_endless(us) else us / MICROSECONDS


def is_endless(us: int) -> bool:
    """Whether a wait lasts until a pause is resumed."""
    return us > ENDLESS_US // 2


def check_duration(seconds: float, name: str) -> float:
    """Return ``seconds`` as a float; raise LimitValueError unless it is a number from 0 to 1e9."""
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= _MAX_SECONDS:
        raise LimitValueError(
            f"{name} of {shown(seconds)} is not allowed; allowed: seconds, 0 or more"
        )
    return float(seconds)
