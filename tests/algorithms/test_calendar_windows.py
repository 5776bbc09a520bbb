"""Calendar windows: days of 23 and 25 hours, weeks and months; and windows that run out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import ReplyStatus
from celery_throttle.testing import ManualClock
from tests.algorithms.limits import DAY, SECOND
from tests.algorithms.properties import Sides
from tests.algorithms.sides import START, Side
from tests.algorithms.traces import Step

LOS_ANGELES = "America/Los_Angeles"
YEAR = 366 * DAY


def moment(zone: str, local: str) -> int:
    """Convert a local time to microseconds since the epoch."""
    return round(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


def windows(sides: Sides, limit: str, start: int, count: int) -> list[timedelta]:
    """Return the lengths of the windows of a limit, by its waits, from a time in the first."""
    lengths: list[timedelta] = []

    def ask(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(count):
            began = side.clock.now
            for _ in range(side.limit.burst):
                assert (yield from side.acquire(MILLION))
            assert not (yield from side.acquire(MILLION))
            side.clock.now += side.wait - 1
            assert not (yield from side.acquire(MILLION))
            side.clock.now += 1
            lengths.append(timedelta(microseconds=side.clock.now - began))

    sides.show(ask, [Limit.parse(limit)], [], start=start)
    return lengths


def hours(*numbers: float) -> list[timedelta]:
    return [timedelta(hours=number) for number in numbers]


def days(*numbers: int) -> list[timedelta]:
    return [timedelta(days=number) for number in numbers]


@pytest.mark.parametrize(
    ("day", "expected"),
    [("2024-03-09", hours(24, 23, 24)), ("2024-11-02", hours(24, 25, 24))],
)
def test_a_daily_quota_over_a_change_of_the_clocks(
    sides: Sides, day: str, expected: list[timedelta]
) -> None:
    """Midnight in Los Angeles; on the Sunday between, an hour is skipped or repeated."""
    limit = f"2/d using fixed-window in {LOS_ANGELES}"
    assert windows(sides, limit, moment(LOS_ANGELES, f"{day}T00:00"), 3) == expected


def test_a_quota_that_begins_in_the_morning(sides: Sides) -> None:
    limit = f"1/d using fixed-window at 07:30 in {LOS_ANGELES}"
    start = moment(LOS_ANGELES, "2024-03-09T07:00")
    assert windows(sides, limit, start, 3) == hours(0.5, 23, 24)
    assert windows(sides, limit, moment(LOS_ANGELES, "2024-11-02T12:00"), 2) == hours(20.5, 24)


def test_half_an_hour_more_or_less(sides: Sides) -> None:
    zone = "Australia/Lord_Howe"
    start = moment(zone, "2024-04-06T00:00")
    limit = f"1/d using fixed-window in {zone}"
    assert windows(sides, limit, start, 3) == hours(24, 24.5, 24)
    assert windows(sides, limit, moment(zone, "2024-10-06T00:00"), 2) == hours(23.5, 24)


def test_weeks_begin_on_monday(sides: Sides) -> None:
    limit = f"1/w using fixed-window in {LOS_ANGELES}"
    start = moment(LOS_ANGELES, "2024-03-07T12:00")  # a Thursday
    assert windows(sides, limit, start, 3) == [
        timedelta(days=3, hours=11),
        *days(7, 7),
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("2024-01-01", days(31, 29, 31, 30)), ("2023-01-01", days(31, 28, 31, 30))],
)
def test_months_have_their_own_lengths(sides: Sides, start: str, expected: list[timedelta]) -> None:
    for limit in ("3/month using fixed-window", "3/month using fixed-window in Asia/Kathmandu"):
        zone = limit.partition(" in ")[2] or "UTC"
        assert windows(sides, limit, moment(zone, f"{start}T00:00"), 4) == expected


# The server is told 64 windows. When they run out it says so, and is told others.

DAILY = f"2/d using fixed-window at 07:30 in {LOS_ANGELES}"


def asked(limiter: Limiter, key: str | None) -> Sequence[int]:
    """Return the script's own reply, without a plan that registers what is missing."""
    requirement = limiter.require([limiter["api", key] if key else "api"], 1)
    reply: Sequence[int] = limiter.store.run(
        limiter.plans._acquire_call(requirement, "peek", None, None)
    )
    return reply


@pytest.mark.parametrize("key", [None, "key", "gold"])
@pytest.mark.parametrize("known_by", ["code", "run time"])
@pytest.mark.parametrize("jump", [63 * DAY, YEAR])
def test_windows_that_have_run_out_are_told_anew(
    redis_url: str, known_by: str, key: str | None, jump: int
) -> None:
    clock = ManualClock(START)
    code = {"api": DAILY if known_by == "code" else "1/s"}
    limiter = Limiter(redis_url, code, clock=clock)
    other = Limiter(redis_url, clock=clock)  # knows nothing but what the server does
    if known_by == "run time":
        limiter["api"].define(DAILY)
    limiter["api", "gold"].define(DAILY)
    asking = limiter if known_by == "code" else other
    bound = asking["api", key] if key else asking["api"]
    for _ in range(3):
        assert [bool(bound.try_acquire()) for _ in range(3)] == [True, True, False]
        clock.now += jump
        assert asked(limiter, key)[0] == ReplyStatus.UNKNOWN
        assert bound.peek(2)
        assert asked(limiter, key)[0] == ReplyStatus.ALLOWED
    asking.store.close()
    limiter.store.close()


def test_windows_are_told_anew_when_the_clock_has_stepped_back(redis_url: str) -> None:
    clock = ManualClock(START)
    limiter = Limiter(redis_url, {"api": DAILY}, clock=clock)
    assert limiter["api"].try_acquire(2)
    clock.now -= YEAR
    assert asked(limiter, None)[0] == ReplyStatus.UNKNOWN
    wait = limiter["api"].try_acquire().retry_after
    assert wait is not None
    clock.advance(wait)
    assert limiter["api"].try_acquire(2)
    limiter.store.close()


def test_two_a_day_stay_two_a_day_when_windows_run_out(redis_url: str) -> None:
    clock = ManualClock(moment(LOS_ANGELES, "2024-06-01T07:30"))
    limiter = Limiter(redis_url, {"api": DAILY}, clock=clock)
    ran_out = 0
    for half_day in range(130):
        ran_out += asked(limiter, None)[0] == ReplyStatus.UNKNOWN
        took = bool(limiter["api"].try_acquire()), bool(limiter["api"].try_acquire())
        assert took == ((True, True) if half_day % 2 == 0 else (False, False))
        clock.now += DAY // 2
    assert ran_out == 2  # nothing was known at first
    limiter.store.close()
