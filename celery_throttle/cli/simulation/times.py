"""Parses and formats times and durations. All are whole microseconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum

from celery_throttle.cli.simulation import SimulationError
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits import duration
from celery_throttle.limits.duration import MAX_EXACT, MICROSECONDS

#: A number of seconds or units.
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(\.\d{1,9})?)?", re.ASCII)
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TimeForm(Enum):
    """The form of a time."""

    SECONDS = "seconds"
    CLOCK = "times of a day"
    DATE = "dates"


def parse_time(text: str) -> tuple[int, TimeForm]:
    """Parse ``"61.5"``, ``"12:01:05"`` or ``"2026-07-01T09:30:00Z"``; return microseconds and form.

    A time of day counts from midnight. A date and time (ISO 8601) counts from 1970, and is in UTC
    if it names no zone.

    Raises:
        SimulationError: the text has another form, or is not from 1970 to 2112.
    """
    date, clock = _DATE.fullmatch(text), _CLOCK.fullmatch(text)
    if date:
        us, form = _date(date, text), TimeForm.DATE
    elif clock:
        hours, minutes, whole, fraction = clock.groups("0")
        total_minutes = int(hours) * 60 + int(minutes)
        us, form = (total_minutes * 60 + int(whole)) * MICROSECONDS + _us(fraction), TimeForm.CLOCK
    elif NUMBER.fullmatch(text):
        us, form = _us(text), TimeForm.SECONDS
    else:
        raise SimulationError(
            f"{shown(text)} is no time; allowed: seconds, such as '61.5', a time of a day, such as "
            "'12:01:05', or a date and time, such as '2026-07-01T09:30:00Z'"
        )
    if not 0 <= us <= MAX_EXACT:
        raise SimulationError(
            f"time {shown(text)} is out of range; allowed: 0 to {MAX_EXACT // MICROSECONDS} "
            "seconds, which is from 1970 to 2112"
        )
    return us, form


def _us(text: str) -> int:
    return int((Decimal(text) * MICROSECONDS).to_integral_value())


def _date(match: re.Match[str], text: str) -> int:
    date, minutes, whole, fraction, zone = match.groups()
    offset = timezone.utc
    try:
        local = datetime.fromisoformat(f"{date}T{minutes}{whole or ':00'}")
        if zone and zone != "Z":
            ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))
            offset = timezone(-ahead if zone[0] == "-" else ahead)
    except ValueError as error:
        raise SimulationError(f"{shown(text)} is no date and time: {error}") from None
    since = local.replace(tzinfo=offset) - _EPOCH
    return since // timedelta(microseconds=1) + _us(fraction or "0")


def parse_duration(text: str) -> int:
    """Parse ``"60s"``, ``"0.5s"``, ``"2m"``; return microseconds.

    Raises:
        SimulationError: the text has another form, is no whole microseconds, or too long.
    """
    try:
        return duration.parse_duration(text)
    except LimitValueError as error:
        raise SimulationError(str(error)) from None


def format_seconds(us: int) -> str:
    """Format microseconds as seconds, exactly: ``"1.5"``."""
    whole, rest = divmod(us, MICROSECONDS)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".")


def format_time(us: int, form: TimeForm) -> str:
    """Format a time."""
    if form is TimeForm.SECONDS:
        return format_seconds(us)
    at = _EPOCH + timedelta(microseconds=us)
    text = f"{at:%Y-%m-%dT%H:%M:%S}" if form is TimeForm.DATE else f"{at:%H:%M:%S}"
    fraction = f".{at.microsecond:06}".rstrip("0").rstrip(".")
    return text + fraction + ("Z" if form is TimeForm.DATE else "")
