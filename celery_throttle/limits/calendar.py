"""Calendar: windows that begin at a time of the day in a time zone, with daylight saving time.

The scripts on the server know no time zones. A definition gives them the starts of some windows;
when these run out, a script replies that it needs more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown

#: Periods that calendar windows may have, as units of a rate.
CALENDAR_PERIODS = ("d", "w", "month")

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of a day, a week (from Monday) or a month that begin at a time of day in a time zone.

    If that time occurs twice because clocks are set back, the window begins at its first
    occurrence. If it is skipped because clocks are set forward, the window begins as long after the
    change: at 03:30 for 02:30. Immutable.

    Attributes:
        zone: The name of the zone in the IANA time zone database, such as
            ``"America/Los_Angeles"``; default ``"UTC"``.
        hour: The hour of the local time, 0 to 23; default 0.
        minute: The minute, 0 to 59; default 0.

    Raises:
        LimitValueError: The zone is unknown, or the time is not a time of day.

    Example:
        >>> limit = Limit(Rate.parse("5000/day"), algorithm="fixed-window",
        ...               window=Calendar("America/Los_Angeles", 7, 30))
        >>> str(limit)
        '5000/d using fixed-window at 07:30 in America/Los_Angeles'
    """

    zone: str = "UTC"
    hour: int = 0
    minute: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.zone, str):
            raise _unknown_zone(self.zone)
        _zone(self.zone)
        if (type(self.hour), type(self.minute)) != (int, int) or not _TIME.fullmatch(self.at):
            time = f"{self.hour}:{self.minute}"
            raise LimitValueError(f"{shown(time)} is not a time of a day; allowed: 00:00 to 23:59")

    @classmethod
    def parse(cls, zone: str, at: str) -> Calendar:
        """Parse the name of a zone and a time of day.

        Args:
            zone: The name of the zone.
            at: The local time of day, such as ``"07:30"``.

        Raises:
            LimitSyntaxError: The time does not have that form.
            LimitValueError: The zone is unknown.
        """
        match = _TIME.fullmatch(at)
        if match is None:
            raise LimitSyntaxError(f"{shown(at)} is not a time of a day; allowed: 00:00 to 23:59")
        hour, minute = map(int, match.groups())
        return cls(zone, hour, minute)

    @property
    def at(self) -> str:
        """The local time, as ``"07:30"``."""
        return f"{self.hour:02}:{self.minute:02}"

    def starts(self, period: str, around: int, count: int) -> list[int]:
        """Return the starts of ``count`` windows and the end of the last, in ascending order.

        The time ``around`` lies in the second window. Times are microseconds since the epoch.

        :meta private:
        """
        local = (_EPOCH + timedelta(microseconds=around)).astimezone(_zone(self.zone))
        day = datetime(local.year, local.month, local.day)  # noqa: DTZ001  # local on purpose
        # Compare instants, not local times: where clocks are set back, a local time comes twice.
        if self._to_us(day) > around:
            day -= timedelta(days=1)
        first = _start_of(_start_of(day, period) - timedelta(days=1), period)  # of the one before
        return [self._to_us(start) for start in islice(_starts_from(first, period), count + 1)]

    def _to_us(self, day: datetime) -> int:
        start = day.replace(hour=self.hour, minute=self.minute, tzinfo=_zone(self.zone))
        return (start.astimezone(timezone.utc) - _EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _unknown_zone(name) from None


def _unknown_zone(name: object) -> LimitValueError:
    return LimitValueError(
        f"unknown time zone {shown(name)}; allowed: names such as 'America/Los_Angeles' or 'UTC'"
    )


def _start_of(day: datetime, period: str) -> datetime:
    """Return the day on which the window of a day begins."""
    if period == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if period == "w" else day


def _starts_from(day: datetime, period: str) -> Iterator[datetime]:
    """Yield the days on which windows begin; ``day`` is the first."""
    while True:
        yield day
        day = _start_of(day + timedelta(days={"d": 1, "w": 7, "month": 31}[period]), period)
