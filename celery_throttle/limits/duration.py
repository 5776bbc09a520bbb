"""Durations: seconds in Python, whole microseconds in the scripts."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal

from celery_throttle.errors import LimitValueError, shown

MICROSECONDS = 1_000_000

#: Microseconds of each time unit, by the symbol that str() writes; the longest first. A month is a
#: twelfth of the Gregorian mean year; only calendar windows have the length of their own month.
UNITS = {
    "month": 2_629_746_000_000,
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}

_WORDS = {
    "month": "months",
    "w": "week weeks",
    "d": "day days",
    "h": "hour hours",
    "m": "min minute minutes",
    "s": "sec second seconds",
}

#: The symbol of each time unit, by all of its spellings.
SPELLINGS = {
    spelling: symbol for symbol in UNITS for spelling in (symbol, *_WORDS.get(symbol, "").split())
}

#: The largest product that the scripts may calculate.
MAX_EXACT = 2**52

#: The longest wait or pause, in seconds: about thirty years.
_MAX_SECONDS = 1e9

#: Microseconds of a pause that lasts until it is resumed. It is stored as any pause is, under a key
#: that expires. A wait of more than half of it is a wait for ``resume``.
ENDLESS_US = 10**15


#: A duration as users write it: seconds, text such as ``"1h30m"``, or a ``timedelta``.
Duration = float | str | timedelta


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


def check_duration(duration: Duration, name: str) -> float:
    """Return a duration in seconds; ``name``: what lasts so long, for the message.

    Raises:
        LimitValueError: it is not from 0 to 1e9 seconds, or has another form.
    """
    seconds = duration
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        with suppress(LimitValueError):
            seconds = parse_duration(duration) / MICROSECONDS
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= _MAX_SECONDS:  # type: ignore[operator]  # it is a number
        raise LimitValueError(
            f"{name} of {shown(duration)} is not allowed; allowed: seconds, 0 or more, text such "
            "as '1h30m', or a timedelta"
        )
    return float(seconds)  # type: ignore[arg-type]  # as above


_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.ASCII)

#: The longest text of a duration: a search in a longer one could take minutes.
_MAX_CHARACTERS = 100


def parse_duration(text: str) -> int:
    """Parse ``"60s"``, ``"0.5s"``, ``"1h30m"``; return microseconds.

    Raises:
        LimitValueError: the text has another form, is no whole microseconds, or too long.
    """
    written = text.strip().lower()
    parts = _PART.findall(written) if len(written) <= _MAX_CHARACTERS else []
    symbols = [SPELLINGS.get(unit) for _, unit in parts]
    if not parts or None in symbols or _PART.sub("", written):
        units = ", ".join(reversed(UNITS))
        raise LimitValueError(
            f"{shown(text)} is no duration; allowed: a number and one of {units}, such as "
            "'0.5s', or several, such as '1h30m'"
        )
    us = sum(Decimal(number) * UNITS[SPELLINGS[unit]] for number, unit in parts)
    if not 1 <= us <= MAX_EXACT or us % 1:
        raise LimitValueError(
            f"duration {shown(text)} is out of range; allowed: whole microseconds, 1 or more"
        )
    return int(us)


def in_longest_unit(us: int) -> tuple[int, str]:
    """Return microseconds as a multiple of the longest time unit that divides them."""
    symbol = next(symbol for symbol, length in UNITS.items() if us % length == 0)
    return us // UNITS[symbol], symbol
