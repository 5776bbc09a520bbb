"""What was counted in parts of time, and the report of it."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from celery_throttle import LimitValueError
from celery_throttle.limits.feedback import Feedback
from celery_throttle.observe.report import rates_of, report_pairs
from celery_throttle.observe.status.records import divide_records, read_records, record_totals
from celery_throttle.observe.status_text import totals_text, waits_text
from celery_throttle.observe.totals import Totals, read_totals
from celery_throttle.observe.values import Period
from tests.protocol import SECOND, Protocol

MINUTE = 60 * SECOND


@pytest.fixture
def lines(redis_url: str) -> Any:
    limits = {"api": "1/s burst 10", "idle": "1/s", "tried": ["9/s", "1/h shadow"]}
    found = Protocol(redis_url, limits)
    yield found
    found.close()


def record(lines: Protocol) -> None:
    lines.limiter.run_plan(record_totals(lines.limiter.observer))


def read_periods(
    lines: Protocol, seconds: float, parts: int, name: str = "api"
) -> tuple[Period, ...]:
    records = lines.limiter.run_plan(read_records(lines.limiter.observer, name, seconds))
    return divide_records([records], seconds, parts)


def periods(lines: Protocol, seconds: float, parts: int, name: str = "api") -> list[Totals]:
    return [period.totals for period in read_periods(lines, seconds, parts, name)]


def take(lines: Protocol, units: int) -> None:
    for _ in range(units):
        assert lines.limiter["api"].try_acquire()


def let_twenty_wait(lines: Protocol) -> None:
    """Use up the limit, record 20 tasks that wait, and claim each in 20 seconds."""
    take(lines, 10)
    for number in range(20):
        lines.park(f"t{number}", ["api"])
    record(lines)
    for _ in range(20):
        lines.now += SECOND
        lines.claim()


def test_units_by_ten_seconds(lines: Protocol) -> None:
    for units in (1, 2, 0, 3):
        record(lines)
        take(lines, units)
        lines.now += 10 * SECOND
    assert [totals.granted for totals in periods(lines, 40, 4)] == [1, 2, 0, 3]
    assert sum(totals.granted for totals in periods(lines, 40, 7)) == 6


def test_a_time_in_which_nothing_was_counted_has_no_records(lines: Protocol) -> None:
    take(lines, 1)
    for _ in range(60):
        record(lines)
        lines.now += 10 * SECOND
    take(lines, 5)
    record(lines)
    assert lines.client.llen(lines.keys.records("api", "recent")) <= 4
    found = [totals.granted for totals in periods(lines, 600, 60)]
    assert (sum(found), found[-1]) == (5, 5)


def test_records_of_several_workers(lines: Protocol) -> None:
    """Ten of them record every second, in whatever order: the records are ten seconds apart."""
    for _ in range(200):
        for _ in range(10):
            record(lines)
        take(lines, 1)
        lines.now += SECOND
    assert lines.client.llen(lines.keys.records("api", "recent")) <= 2 + 200 // 9
    assert sum(totals.granted for totals in periods(lines, 200, 20)) == 200


def test_a_week(lines: Protocol) -> None:
    for _ in range(7 * 24 * 6 + 30):
        record(lines)
        take(lines, 1)
        lines.now += 10 * MINUTE
    length = lines.client.llen(lines.keys.records("api", "week"))
    assert 7 * 24 * 6 <= length <= 1010
    days = [totals.granted for totals in periods(lines, 7 * 86_400, 7)]
    assert days == [144] * 7


def test_the_most_waiting_tasks_are_the_same_in_any_time(lines: Protocol) -> None:
    """A report of a day shows the peak that the last 15 minutes show, though it has passed."""
    for _ in range(70):
        record(lines)
        take(lines, 1)
        lines.now += 10 * SECOND
    let_twenty_wait(lines)
    for _ in range(5):
        record(lines)
        lines.now += 10 * SECOND
    for seconds, parts in ((900, 30), (86_400, 96), (604_800, 96)):
        found = read_periods(lines, seconds, parts)
        assert max(period.most_waiting for period in found) == 20
        assert found[-1].waiting == 0
    assert sum(one.granted for one in periods(lines, 86_400, 96)) == 70 + 10 + 20


def test_totals_that_began_anew(lines: Protocol) -> None:
    record(lines)
    take(lines, 3)
    lines.now += 10 * SECOND
    record(lines)
    lines.client.delete(lines.keys.totals("api"))
    take(lines, 2)
    lines.now += 10 * SECOND
    assert sum(totals.granted for totals in periods(lines, 20, 2)) == 5


def test_nothing_is_recorded_of_a_limit_that_nobody_uses(lines: Protocol) -> None:
    record(lines)
    take(lines, 1)
    lines.now += 10 * SECOND
    record(lines)
    assert not lines.client.exists(lines.keys.records("idle", "recent"))
    assert periods(lines, 60, 1, "idle") == [read_totals({})]


@pytest.mark.parametrize("seconds", [0, 0.5, 604_801])
def test_times_that_are_not_recorded(lines: Protocol, seconds: float) -> None:
    with pytest.raises(LimitValueError, match="from one second to seven days"):
        lines.limiter["api"].report(seconds)


def test_reports(lines: Protocol) -> None:
    api = lines.limiter["api"]
    assert api.report(600).verdict == "unknown"
    for _ in range(60):
        record(lines)
        take(lines, 1)
        lines.now += 10 * SECOND
    report = api.report(600)
    assert (report.verdict, report.at_limit, report.totals.granted) == ("idle", 0, 60)
    assert report.use == pytest.approx(60 / 610)
    for _ in range(60):
        record(lines)
        take(lines, 10)
        assert not api.try_acquire()
        lines.now += 10 * SECOND
    report = api.report(600)
    assert (report.verdict, report.at_limit) == ("too strict", 1)
    assert report.use == pytest.approx(600 / 610)
    assert "100% of the time" in report.advice
    for _ in range(10):
        api.learn(Feedback(refused=True, stop=0))
    report = api.report(600)
    assert report.verdict == "too loose"
    assert "refused 10 requests" in report.advice


def test_the_report_of_a_young_limit_divides_by_the_time_since_it_came_into_force(
    lines: Protocol,
) -> None:
    """It is saturated since it was registered, five minutes before a report of a day."""
    take(lines, 10)
    for number in range(310):
        lines.park(f"t{number}", ["api"])
    for _ in range(300):
        lines.now += SECOND
        record(lines)
        lines.claim()
    report = lines.limiter["api"].report(86_400)
    # The first record says what was counted ten seconds before it, at most.
    assert report.use == pytest.approx(310 / (10 + 300), abs=10 / 310)
    assert (report.at_limit, report.verdict) == (1, "too strict")
    length = (report.periods[-1].end - report.periods[0].start).total_seconds()
    assert 300 <= length <= 320


def test_the_use_of_a_changed_limit_is_that_since_the_change(lines: Protocol) -> None:
    api = lines.limiter["api"]
    for _ in range(30):
        record(lines)
        take(lines, 10)
        lines.now += 10 * SECOND
    api.define("1/10s")
    for _ in range(30):
        record(lines)
        take(lines, 1)
        lines.now += 10 * SECOND
    report = api.report(3600)
    assert report.totals.granted == 330
    assert report.use == pytest.approx(30 / 31, abs=0.04)


def test_the_report_of_a_limit_with_keys_names_the_worst_key(lines: Protocol) -> None:
    lines.limiter["api", "acme"].pause(60)
    for number in range(7):
        lines.park(f"t{number}", [("api", "acme")])
    report = lines.limiter["api"].report(60)
    assert report.top_keys == (("acme", 7),)
    assert "The key with the most waiting tasks is 'acme', with 7 tasks." in report.advice


@pytest.mark.parametrize("key", ["acme", None])
def test_a_pause_alone_does_not_count_as_at_the_limit(lines: Protocol, key: str | None) -> None:
    """Tasks wait for a key or a limit that is paused; once the pause has ended, for the limit."""
    paused = lines.limiter["api", key] if key else lines.limiter["api"]
    ref = ("api", key) if key else "api"
    take(lines, 5)
    record(lines)
    paused.pause(300)
    for number in range(40):
        lines.park(f"t{number}", [ref])
        lines.now += 7 * SECOND
        record(lines)
    report = lines.limiter["api"].report(300)
    assert (report.at_limit, report.periods[-1].paused) == (0, 40)
    assert report.verdict == "idle"
    paused.resume()
    for _ in range(20):
        lines.now += 10 * SECOND
        record(lines)
    report = lines.limiter["api"].report(60)
    assert (report.at_limit, report.periods[-1].paused) == (1, 0)


def test_the_limit_is_reached_while_one_key_is_paused(lines: Protocol) -> None:
    lines.limiter["api", "acme"].pause(300)
    assert lines.limiter["api", "other"].try_acquire(10)
    lines.park("t1", [("api", "acme")])
    for number in range(20):
        lines.park(f"u{number}", [("api", "other")])
    lines.now += 10 * SECOND
    record(lines)
    assert lines.limiter["api"].report(60).at_limit == 1


def test_the_report_of_a_shadow_limit(lines: Protocol) -> None:
    for _ in range(6):
        record(lines)
        assert lines.limiter["tried"].try_acquire()
        lines.now += 10 * SECOND
    report = lines.limiter["tried"].report(60)
    assert report.totals.shadow_refused == 5
    assert "The shadow limit would have refused 5 requests" in report.advice
    assert report.use == pytest.approx(6 / (1 + 9 * 60))


def test_waits(lines: Protocol) -> None:
    let_twenty_wait(lines)
    report = lines.limiter["api"].report(60)
    assert report.totals.claimed == 20
    assert report.totals.granted == 30
    assert 150 < report.totals.waited < 270
    quantiles = [report.totals.wait_quantile(share) for share in (0.5, 0.95)]
    assert quantiles == [(6.4, 12.8), (12.8, 25.6)]
    waits = "median 6.4 to 13 s, 95th percentile 13 to 26 s"
    assert ("waits", waits) in report_pairs(report)
    assert totals_text(report.totals).endswith(f"\nwaits: {waits}")


@pytest.mark.parametrize(
    ("bucket", "found", "text"),
    [
        (0, (0, 0.1), "up to 0.1 s"),
        (9, (25.6, 51.2), "26 to 51 s"),
        (10, (51.2, 102.4), "51 s to 1 min 42 s"),
        (20, (52428.8, inf), "above 14 h 33 min"),
    ],
)
def test_a_wait_is_known_by_its_bucket(bucket: int, found: tuple[float, float], text: str) -> None:
    totals = Totals(waits=tuple(int(n == bucket) for n in range(21)))
    assert totals.wait_quantile(0.5) == totals.wait_quantile(0.95) == found
    assert waits_text(totals) == f"median {text}, 95th percentile {text}"
    assert Totals().wait_quantile(0.5) is None


def test_the_rate_of_each_part_of_the_time_is_the_one_that_was_in_force(lines: Protocol) -> None:
    """A rate that was lowered does not make what the rate before allowed look like too much."""
    api, rates = lines.limiter["api"], [5, 3, 8]
    for rate in rates:
        api.define(f"{rate}/s burst {rate}")
        lines.limiter["api", "vip"].define("100/s")
        for _ in range(6):
            record(lines)
            take(lines, rate)
            lines.now += 10 * SECOND
    lines.limiter["api", "vip"].undefine()
    found = rates_of(api.status(), lines.limiter.changes(), read_periods(lines, 180, 18))
    assert found == [5.0] * 6 + [3.0] * 6 + [8.0] * 6
    lines.now += 5 * SECOND  # now a part has both rates: the higher one allowed its units
    found = rates_of(api.status(), lines.limiter.changes(), read_periods(lines, 180, 18))
    assert found == [5.0] * 6 + [3.0] * 5 + [8.0] * 7
