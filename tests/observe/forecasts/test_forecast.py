"""Forecasts compared with the actual starts of tasks, on a real server with a manual clock."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone

import pytest

from celery_throttle import Forecast, Limiter, LimitValueError, UnknownLimitError
from celery_throttle.limits.key import ItemLike
from celery_throttle.limits.requirement import LimitsLike
from celery_throttle.observe.forecasts.reader import forecast_fan_out, read_lines
from tests.ends import MakeEnd
from tests.protocol import SECOND, Make, Protocol, make_protocols
from tests.servers.server import wait_until
from tests.workers import StartWorker

LIMITS = {
    "api": "10/s",
    "mail": "2/s",
    "deep": "20/s burst 50",
    "queue": "20/s burst 1000 using leaky-queue",
    "window": "50/10s using fixed-window",
    "first": "50/10s using fixed-window from first-request",
    "log": "50/10s using sliding-log",
    "sliding": "50/10s using sliding-window",
    "day": "50/day using fixed-window in America/New_York",
    "adaptive": "adaptive 5..20/s",
    "github": ["100/s burst 10", "2 at once"],
}


@pytest.fixture
def make(redis_url: str) -> Iterator[Make]:
    make: Make

    def with_worker(limits: Mapping[str, LimitsLike]) -> Protocol:
        lines = make(limits)
        lines.add_worker()
        return lines

    for made in make_protocols(redis_url):
        make = made
        yield with_worker


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make(LIMITS)


def park(lines: Protocol, count: int, *limits: ItemLike, queue: str = "q", rank: int = 0) -> None:
    for number in range(count):
        task = f"{limits}-{queue}-{rank}-{number}"
        lines.park(task, limits, queue=queue, rank=rank, may_run=False)


def forecast(lines: Protocol, limit: ItemLike = "api") -> Forecast:
    return lines.limiter[limit].forecast()


def drain(lines: Protocol, seconds: float = 1e9) -> float:
    """Let a worker claim for some seconds; return when the last task started, in seconds."""
    began = last = lines.now
    queues, settled = ["q", "r"], list[int]()
    while lines.waiting() and lines.now - began < seconds * SECOND:
        claims = lines.claim(room=100, queues=queues, ahead=20_000, settled=settled)
        last = max([last, *(lines.now + claim.starts for claim in claims)])
        settled = [claim.token for claim in claims]
        queues.reverse()
        lines.now += max(5_000, min(lines.ask, round(seconds * SECOND) - (lines.now - began)))
    lines.claim(room=0, settled=settled)
    return (last - began) / SECOND


def assert_true(lines: Protocol, limit: ItemLike = "api") -> None:
    """The forecast is right, within 5% of the remaining time."""
    found = forecast(lines, limit)
    assert found.seconds == pytest.approx(drain(lines), rel=0.05)


@pytest.mark.parametrize(
    ("limit", "waiting"),
    [
        ("api", 300),
        ("deep", 500),
        ("queue", 500),
        ("window", 270),
        ("first", 270),
        ("log", 270),
        ("sliding", 500),
        ("adaptive", 300),
    ],
)
def test_a_forecast_of_one_limit_comes_true(lines: Protocol, limit: str, waiting: int) -> None:
    park(lines, waiting, limit)
    found = forecast(lines, limit)
    assert (found.waiting, found.limited_by) == (waiting, limit)
    assert_true(lines, limit)


def test_windows_of_a_calendar_begin_when_they_do(lines: Protocol) -> None:
    park(lines, 120, "day")
    # 1970 began at seven in the evening, in New York.
    days = forecast(lines, "day").seconds
    assert days == 5 * 3600 - lines.now / SECOND + 24 * 3600


def test_with_nothing_waiting_it_is_now(lines: Protocol) -> None:
    now = datetime.fromtimestamp(lines.now / SECOND, timezone.utc)
    assert forecast(lines) == Forecast(0, 0.0, now, now, unknown=0, limited_by=None, cause=None)


def test_what_fits_starts_now(lines: Protocol) -> None:
    park(lines, 30, "deep")
    found = forecast(lines, "deep")
    assert (found.waiting, found.seconds, found.limited_by) == (30, 0.0, None)


def test_it_tells_the_time_of_day(lines: Protocol) -> None:
    park(lines, 301, "api")
    found = forecast(lines)
    assert found.seconds == pytest.approx(30)
    assert found.at == datetime.fromtimestamp(lines.now / SECOND + 30, timezone.utc)


def test_an_unknown_limit_is_an_error(lines: Protocol) -> None:
    with pytest.raises(UnknownLimitError):
        forecast(lines, "nobody")


def test_both_ends_tell_the_same(lines: Protocol, end_of: MakeEnd) -> None:
    park(lines, 50, ("mail", "gold"))
    end = end_of(Limiter(lines.url, LIMITS, clock=lines.clock))
    assert end["mail"].forecast() == end["mail", "gold"].forecast() == forecast(lines, "mail")
    assert end["mail", "tin"].forecast().waiting == 0


def test_it_is_true_in_the_middle_and_after_a_pause(lines: Protocol) -> None:
    park(lines, 400, "api")
    drain(lines, 10)
    lines.limiter["api"].pause(15)
    found = forecast(lines)
    assert found.seconds == pytest.approx(15 + found.waiting / 10, rel=0.01)
    drain(lines, 5)
    assert_true(lines)


def test_it_is_true_after_a_change_of_the_limit(lines: Protocol) -> None:
    park(lines, 400, "api")
    drain(lines, 10)
    lines.limiter["api"].define("25/s burst 5")
    assert_true(lines)


def test_it_is_true_after_one_key_has_a_limit_of_its_own(lines: Protocol) -> None:
    park(lines, 60, ("mail", "gold"))
    park(lines, 40, ("mail", "tin"))
    lines.limiter["mail", "gold"].define("5/s")
    assert forecast(lines, ("mail", "gold")).seconds == pytest.approx(12, rel=0.05)
    assert_true(lines, ("mail", "tin"))


def test_lines_of_two_queues_share_a_limit(lines: Protocol) -> None:
    park(lines, 150, "api")
    park(lines, 100, "api", queue="r")
    park(lines, 50, "api", ("deep", "gold"), queue="r")
    assert forecast(lines, ("deep", "gold")).waiting == 50
    assert_true(lines)


def test_queues_have_equal_shares_and_so_have_the_lines_of_each(lines: Protocol) -> None:
    park(lines, 200, "api")
    for tenant in range(4):
        park(lines, 20, "api", ("deep", tenant), queue="r")
    found = forecast(lines, ("deep", 1))
    assert found.seconds == pytest.approx(16, rel=0.05)
    began = lines.now
    drain(lines, 16.5)
    assert lines.now - began <= 17 * SECOND
    assert forecast(lines, "deep").waiting == 0


def test_what_waits_at_another_limit_counts(lines: Protocol) -> None:
    """The line needs two limits, and waits at the one that blocks it."""
    park(lines, 100, "api", ("mail", "gold"))
    drain(lines, 2)
    assert not lines.client.exists(lines.keys.waiting_list_index("api"))
    found = forecast(lines)
    assert found.limited_by == "mail"
    assert_true(lines)


def test_each_line_has_its_ranks(lines: Protocol) -> None:
    park(lines, 40, "api", rank=0)
    park(lines, 60, "api", rank=9)
    (line,) = lines.limiter.run_plan(read_lines(lines.limiter.observer, "q")).values()
    assert line.ranks == [(0, 40), (9, 60)]
    assert_true(lines)


def test_costs_that_differ_count_as_their_mean(lines: Protocol) -> None:
    for number in range(200):
        lines.park(f"{number}", ["deep"], cost=1 + number % 3, may_run=False)
    assert_true(lines, "deep")


def test_a_long_window_is_no_steady_flow(make: Make) -> None:
    lines = make({"github": "5000/h using fixed-window"})
    lines.now = 7200 * SECOND
    lines.limiter["github"].try_acquire(4990)
    lines.now += 600 * SECOND
    park(lines, 15, "github")
    found = forecast(lines, "github")
    assert found.seconds == pytest.approx(3000)
    drain(lines, 1)
    assert forecast(lines, "github").seconds == pytest.approx(2999, abs=1)


def test_who_needs_a_slot_waits_for_nobody_knows_how_long(lines: Protocol) -> None:
    park(lines, 30, "github")
    found = forecast(lines, "github")
    assert (found.waiting, found.seconds, found.at, found.limited_by) == (30, None, None, "github")
    assert (found.cause, found.unknown, found.earliest) == ("slots", 30, lines.time(0.2))
    measured = lines.limiter["github"].forecast(measured=4.0)
    assert (measured.seconds, measured.limited_by) == (7.5, "github")


def test_where_nobody_takes_what_is_due_workers_are_too_few(lines: Protocol) -> None:
    park(lines, 30, "api")
    lines.now += SECOND
    found = forecast(lines)
    assert (found.seconds, found.earliest) == (None, lines.time(2.9))
    assert (found.cause, found.limited_by, found.unknown) == ("processes", None, 30)
    for wrong in (0, -1, math.nan, True, "a"):
        with pytest.raises(LimitValueError, match="measured is"):
            lines.limiter["api"].forecast(measured=wrong)  # type: ignore[arg-type]  # that is the point
    measured = lines.limiter["api"].forecast(measured=0.5)
    assert (measured.seconds, measured.cause, measured.unknown) == (60.0, "processes", 0)


def test_where_more_is_left_than_is_taken_workers_are_too_few_too(lines: Protocol) -> None:
    park(lines, 45, "window")
    for _ in range(20):
        lines.now += 100_000
        lines.claim(room=1)
    found = forecast(lines, "window")
    assert found.waiting == 25
    assert found.seconds == 0
    assert found.cause is None  # it was taken just now
    lines.now += 10_000
    assert forecast(lines, "window").cause == "processes"
    lines.limiter["window"].pause(1)
    assert forecast(lines, "window").limited_by == "window"


@pytest.mark.parametrize("paused", ["api", "slots", "other"])
@pytest.mark.parametrize("measured", [None, 5.0])
def test_what_is_paused_until_resumed_never_starts(
    make: Make, paused: str, measured: float | None
) -> None:
    lines = make({"api": "10/s", "slots": "2 at once", "other": "100/s"})
    park(lines, 20, "api", "slots", "other")
    park(lines, 5, "api")
    lines.limiter[paused].pause(None)
    found = lines.limiter[paused].forecast(measured=measured)
    assert (found.seconds, found.at, found.limited_by) == (None, None, paused)
    assert (found.cause, found.unknown) == ("pause", 25 if paused == "api" else 20)
    lines.limiter[paused].resume()
    lines.limiter["other", "one"].pause(None)  # another key
    assert lines.limiter["other"].forecast(measured=5.0).seconds is not None


def test_what_is_paused_until_resumed_holds_up_no_other(make: Make) -> None:
    """Also with as many lines at shared limits as make the forecast round its numbers."""
    lines = make({"api": "100/s", "mail": "10/s"})
    for number in range(300):
        park(lines, 1, "api", ("mail", number))
        if number % 3 == 0:
            lines.limiter["mail", number].pause(None)
    found = lines.limiter["mail", 1].forecast()
    assert found.seconds is not None
    assert found.seconds < 3
    api = lines.limiter["api"].forecast()
    assert (api.seconds, api.cause, api.limited_by, api.unknown) == (None, "pause", "mail", 100)
    assert api.earliest == lines.time(1.99)  # of the other 200


#: Assigns all lines that need two limits to a fan-out, in their about-tables.
_ASSIGN_TO_FAN_OUT = """
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  local about = cmsgpack.unpack(string.sub(found[i + 1], 2))
  if about.limits[2] then
    about.fan_out = ARGV[1]
    redis.call('HSET', KEYS[1], found[i], string.sub(found[i + 1], 1, 1) .. cmsgpack.pack(about))
  end
end
"""


def test_tasks_of_a_fanout_are_found_by_its_key(lines: Protocol) -> None:
    """Other tasks at the same limit delay them, and are not counted."""
    park(lines, 100, "api")
    park(lines, 60, "api", ("deep", "fan"))
    lines.client.eval(_ASSIGN_TO_FAN_OUT, 1, lines.keys.queue("q").lines, "fan-1")
    observer = lines.limiter.observer
    found = lines.limiter.run_plan(forecast_fan_out(observer, "fan-1"))
    assert (found.waiting, found.limited_by) == (60, "api")
    assert found.seconds == pytest.approx(12, rel=0.02)
    assert lines.limiter.run_plan(forecast_fan_out(observer, "fan-2")).waiting == 0


def test_a_limit_that_nobody_knows_holds_up_nothing(lines: Protocol) -> None:
    park(lines, 100, "api", ("mail", "gold"))
    lines.client.hdel(lines.keys.limits, "mail")
    limiter = Limiter(lines.url, {"api": LIMITS["api"]}, clock=lines.clock)
    assert limiter["api"].forecast().seconds == pytest.approx(10, rel=0.02)
    limiter.store.close()


def test_many_lines_are_read_in_pages(make: Make) -> None:
    lines = make({"api": "100/s", "mail": "10/m"})
    for number in range(1200):
        park(lines, 1 + number % 3, "api", ("mail", number))
    began = time.process_time()
    found = forecast(lines)
    assert time.process_time() - began < 5
    assert found.waiting == 2400
    assert found.seconds == pytest.approx(24, rel=0.05)


@pytest.mark.thorough
@pytest.mark.workers
def test_a_forecast_comes_true_with_workers(redis_url: str, start_worker: StartWorker) -> None:
    from tests.apps import shop  # noqa: PLC0415  # it reads its settings when it is imported

    shop.connect(redis_url)
    for _ in range(2):
        start_worker("tests.apps.shop", redis_url)
    limiter = Limiter(redis_url, shop.LIMITS)

    def comes_true() -> bool:
        limiter["drain"].pause(None)
        for number in range(500):
            shop.drain.delay(number)
        wait_until(lambda: limiter["drain"].forecast().waiting == 500, "a line of all tasks")
        began = time.monotonic()
        limiter["drain"].resume()
        found = limiter["drain"].forecast()
        limiter["drain"].pause(2)
        paused = limiter["drain"].forecast()
        wait_until(lambda: not limiter["drain"].forecast().waiting, "the end of the line", 120)
        took = time.monotonic() - began
        assert found.seconds is not None
        assert paused.seconds is not None
        print(f"forecast: {found.seconds + 2} s, {paused.seconds} s; took {took} s")
        return all(
            expected == pytest.approx(took, rel=0.05)
            for expected in (found.seconds + 2, paused.seconds)
        )

    # Other processes may delay the tasks of some lines, but not of all.
    assert any(comes_true() for _ in range(3))
    limiter.store.close()
