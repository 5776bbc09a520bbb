"""Calendar windows of a time zone, across daylight saving changes."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.errors import LimitSyntaxError, LimitValueError
from celery_throttle.limits.calendar import CALENDAR_PERIODS, Calendar
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR

# Their clocks are changed by an hour or half an hour, at night or at midnight, or not at all.
ZONES = (
    "UTC",
    "America/New_York",
    "America/Los_Angeles",
    "America/Santiago",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
)


def at(text: str, zone: str = "UTC", fold: int = 0) -> int:
    """Convert a local time to microseconds since the epoch."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(local.timestamp()) * SECOND


def local(moment: int, zone: str) -> datetime:
    return datetime.fromtimestamp(moment // SECOND, timezone.utc).astimezone(ZoneInfo(zone))


@pytest.mark.parametrize(
    ("calendar", "period", "around", "starts"),
    [
        (Calendar(), "d", "2026-03-01 12:00", ["2026-02-28", "2026-03-01", "2026-03-02"]),
        (Calendar(), "d", "2026-03-01 00:00", ["2026-02-28", "2026-03-01", "2026-03-02"]),
        # A Sunday.
        (Calendar(), "w", "2026-03-01 12:00", ["2026-02-16", "2026-02-23", "2026-03-02"]),
        (Calendar(), "month", "2026-03-01 12:00", ["2026-02-01", "2026-03-01", "2026-04-01"]),
        (
            Calendar(hour=7, minute=30),
            "d",
            "2026-03-01 07:29",
            ["2026-02-27 07:30", "2026-02-28 07:30", "2026-03-01 07:30"],
        ),
        (
            Calendar(hour=7, minute=30),
            "w",
            "2026-03-02 07:29",
            ["2026-02-16 07:30", "2026-02-23 07:30", "2026-03-02 07:30"],
        ),
        (
            Calendar(hour=7, minute=30),
            "month",
            "2026-01-01 07:29",
            ["2025-11-01 07:30", "2025-12-01 07:30", "2026-01-01 07:30"],
        ),
        (
            Calendar("America/New_York", 7),
            "d",
            "2026-03-08 07:00",
            ["2026-03-07 07:00", "2026-03-08 07:00", "2026-03-09 07:00"],
        ),
    ],
)
def test_windows_begin_when_they_should(
    calendar: Calendar, period: str, around: str, starts: list[str]
) -> None:
    zone = calendar.zone
    found = calendar.starts(period, at(around, zone), len(starts) - 1)
    assert found == [at(start, zone) for start in starts]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2026-03-08", 24),
        ("America/New_York", "2026-03-07", 24),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
    ],
)
def test_a_day_is_as_long_as_it_is_there(zone: str, day: str, hours: float) -> None:
    _, start, stop = Calendar(zone).starts("d", at(f"{day} 12:00", zone), 2)
    assert start == at(f"{day} 00:00", zone)
    assert stop - start == hours * HOUR


def test_a_month_has_its_own_length() -> None:
    starts = Calendar("Asia/Kolkata").starts("month", at("2024-01-31 23:59", "Asia/Kolkata"), 12)
    days = [(after - before) // DAY for before, after in pairwise(starts)]
    assert days == [31, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30]


@given(
    zone=st.sampled_from(ZONES),
    hour=st.integers(0, 23),
    minute=st.sampled_from([0, 15, 30, 59]),
    period=st.sampled_from(CALENDAR_PERIODS),
    around=st.datetimes(datetime(2024, 1, 1), datetime(2035, 1, 1)),  # noqa: DTZ001  # in UTC
    count=st.integers(2, 70),
)
@example(  # the hour comes a second time after the window has begun
    zone="America/New_York",
    hour=1,
    minute=30,
    period="d",
    around=datetime(2026, 11, 1, 6, 10),  # noqa: DTZ001  # in UTC
    count=2,
)
@example(
    zone="America/New_York",
    hour=1,
    minute=30,
    period="d",
    around=datetime(2026, 11, 1, 5, 10),  # noqa: DTZ001  # in UTC
    count=2,
)
def test_a_time_lies_in_the_second_window(
    *, zone: str, hour: int, minute: int, period: str, around: datetime, count: int
) -> None:
    calendar = Calendar(zone, hour, minute)
    now = round((around.replace(tzinfo=timezone.utc, microsecond=0)).timestamp()) * SECOND
    starts = calendar.starts(period, now, count)
    assert len(starts) == count + 1
    assert all(before < after for before, after in pairwise(starts))
    days = [local(start, zone) for start in starts]
    assert all(
        (day.hour, day.minute) == (hour, minute)
        or day.utcoffset() != (day - timedelta(hours=3)).utcoffset()  # the time is skipped
        for day in days
    )
    assert starts[1] <= now < starts[2]
    assert not any(day.fold for day in days)
    if period == "d":
        ahead = {after.date() - before.date() for before, after in pairwise(days)}
        assert ahead == {timedelta(days=1)}
    elif period == "w":
        assert {day.weekday() for day in days} == {0}
    else:
        assert {day.day for day in days} == {1}


@pytest.mark.parametrize(
    ("zone", "time", "day", "start"),
    [
        ("America/New_York", "02:30", "2026-03-08", "03:30"),
        ("Australia/Lord_Howe", "02:15", "2026-10-04", "02:45"),
        ("Asia/Beirut", "00:00", "2026-03-29", "01:00"),
    ],
)
def test_a_window_whose_time_is_skipped_begins_as_long_after_the_change(
    zone: str, time: str, day: str, start: str
) -> None:
    calendar = Limit.parse(f"9/d using fixed-window at {time} in {zone}").window
    assert isinstance(calendar, Calendar)
    _, begin, _ = calendar.starts("d", at(f"{day} 12:00", zone), 2)
    assert local(begin, zone).isoformat()[:16] == f"{day}T{start}"


@pytest.mark.parametrize(
    "zone", ["", "Mars/Base", "Europe", "europe/berlin ", "../UTC", "a\0b", "x" * 5000, None, 5, []]
)
def test_an_unknown_zone(zone: Any) -> None:
    with pytest.raises(LimitValueError, match=r"^unknown time zone .*; allowed: ") as caught:
        Calendar(zone)
    assert repr(zone)[:90] in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("hour", "minute"),
    [(24, 0), (-1, 0), (7, 60), (7, -1), (7.0, 0), ("7", 0), ("12", 0), (True, 0), (7, None)],
)
def test_such_times_are_none(hour: Any, minute: Any) -> None:
    with pytest.raises(LimitValueError, match=r"is not a time of a day; allowed: 00:00 to 23:59"):
        Calendar("UTC", hour, minute)


@pytest.mark.parametrize("text", ["", "7", "7:5", "24:00", "07:60", "7am", "07:00:00", "-1:00"])
def test_text_that_is_no_time(text: str) -> None:
    with pytest.raises(LimitSyntaxError, match="allowed: 00:00 to 23:59") as caught:
        Calendar.parse("UTC", text)
    assert repr(text) in str(caught.value)


def test_is_a_value() -> None:
    calendar = Calendar.parse("Asia/Kolkata", "7:05")
    assert calendar == Calendar("Asia/Kolkata", 7, 5)
    assert calendar.at == "07:05"
    assert pickle.loads(pickle.dumps(calendar)) == calendar  # noqa: S301 - made in this line
    assert len({calendar, Calendar("Asia/Kolkata", 7, 5)}) == 1


@pytest.mark.parametrize(
    ("text", "zone", "begins", "ends"),
    [
        (
            "2/d using fixed-window at 01:30 in America/New_York",
            "America/New_York",
            "2026-10-31 01:30",
            "2026-11-01 01:30",
        ),
        (
            "2/d using fixed-window at 01:30 in America/New_York",
            "America/New_York",
            "2026-11-01 01:30",
            "2026-11-02 01:30",
        ),
        (
            "2/month using fixed-window in Asia/Kolkata",
            "Asia/Kolkata",
            "2028-02-01",
            "2028-03-01",
        ),
        ("2/w using fixed-window", "UTC", "2026-03-05", "2026-03-12"),  # as the epoch: a Thursday
        ("2/w using fixed-window in UTC", "UTC", "2026-03-02", "2026-03-09"),
    ],
)
def test_a_window_admits_its_count_and_no_more(
    text: str, zone: str, begins: str, ends: str
) -> None:
    ref = LimitRef("api", None)
    begin, end = at(begins, zone), at(ends, zone)
    middle = [begin + (end - begin) * share // 97 for share in range(1, 97)]
    for now in [begin, *middle, end - 1]:
        limits = MemoryLimits({"api": text})
        limits.acquire({ref: 2}, begin - 1)
        assert limits.acquire({ref: 1}, now)
        assert limits.acquire({ref: 1}, now)
        refused = limits.acquire({ref: 1}, now)
        assert (refused.allowed, refused.retry_after) == (False, (end - now) / SECOND)
        assert limits.acquire({ref: 2}, end)
