"""Calendar: windows that begin at an hour of the day somewhere, with its daylight saving time.

The scripts on the server know no time zones. They are given the moments at which some windows
begin, and ask for more when these run out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown

#: Of which the windows may be: the units of a rate's period.
PERIODS = ("d", "w", "month")

#: Years for which every window is checked to begin at an hour that there is.
_CHECKED_YEARS = 10

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Windows of a day, a week (from Monday) or a month that begin at ``hour:minute`` in a zone.

    Where the clocks are put back over that hour, the window begins at its first occurrence.

    Attributes:
        zone: name in the IANA time zone database, such as ``"America/Los_Angeles"``.
        hour, minute: local time; midnight unless given.

    Raises:
        LimitValueError: the zone is unknown, or the time is none.
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
            raise LimitValueError(f"{shown(time)} is no time of a day; allowed: 00:00 to 23:59")

    @classmethod
    def parse(cls, zone: str, at: str) -> Calendar:
        """Read the name of a zone and a time such as ``"07:30"``.

        Raises:
            LimitSyntaxError: the time is not of that form.
            LimitValueError: the zone is unknown.
        """
        match = _TIME.fullmatch(at)
        if match is None:
            raise LimitSyntaxError(f"{shown(at)} is no time of a day; allowed: 00:00 to 23:59")
        hour, minute = map(int, match.groups())
        return cls(zone, hour, minute)

    @property
    def at(self) -> str:
        """The local time, as ``"07:30"``."""
        return f"{self.hour:02}:{self.minute:02}"

    def check(self, period: str) -> None:
        """Raise LimitValueError if daylight saving time skips the beginning of a window to come."""
        today = datetime.now(timezone.utc)
        skipped = _first_skipped(self, period, today.year, today.month)
        if skipped is not None:
            raise LimitValueError(
                f"on {skipped:%Y-%m-%d} the clocks of {self.zone} skip {self.at}, at which a "
                "window would begin; allowed: an hour that every day has"
            )

    def starts(self, period: str, around: int, count: int) -> list[int]:
        """When windows begin, in microseconds since the epoch and in order.

        Args:
            period: one of ``PERIODS``.
            around: a time in microseconds; it lies in the second of the windows.
            count: how many windows; the last moment is the end of the last one.
        """
        local = (_EPOCH + timedelta(microseconds=around)).astimezone(_zone(self.zone))
        day = datetime(local.year, local.month, local.day)  # noqa: DTZ001  # local on purpose
        # By the moment, not by the hour: where the clocks are put back, that comes twice.
        if self._moment(day) > around:
            day -= timedelta(days=1)
        found: list[int] = []
        for start in _days(_before(_floor(day, period), period), period):
            found.append(self._moment(start))
            if len(found) > count:
                return found
        raise AssertionError

    def _local(self, day: datetime) -> datetime:
        return day.replace(hour=self.hour, minute=self.minute, tzinfo=_zone(self.zone))

    def _moment(self, day: datetime) -> int:
        since = self._local(day).astimezone(timezone.utc) - _EPOCH
        return since // timedelta(microseconds=1)

    def _exists(self, day: datetime) -> bool:
        local = self._local(day)
        there_and_back = local.astimezone(timezone.utc).astimezone(local.tzinfo)
        return there_and_back.replace(tzinfo=None) == local.replace(tzinfo=None)


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


@lru_cache(maxsize=64)
def _first_skipped(calendar: Calendar, period: str, year: int, month: int) -> datetime | None:
    first = datetime(year, month, 1)  # noqa: DTZ001  # local on purpose
    for day in _days(_floor(first, period), period):
        if day.year > year + _CHECKED_YEARS:
            return None
        if not calendar._exists(day):  # noqa: SLF001  # kept out of the class to be cached
            return day
    return None


def _floor(day: datetime, period: str) -> datetime:
    if period == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if period == "w" else day


def _before(day: datetime, period: str) -> datetime:
    return _floor(day - timedelta(days=1), period)


def _days(day: datetime, period: str) -> Iterator[datetime]:
    """The days on which windows begin, from one of them on."""
    while True:
        yield day
        day = _floor(day + timedelta(days={"d": 1, "w": 7, "month": 31}[period]), period)
