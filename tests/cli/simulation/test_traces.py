from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.simulation.traces import (
    GENERATORS,
    Arrival,
    Trace,
    format_seconds,
    parse_time,
    read_trace,
)
from celery_throttle.errors import ThrottleError

SECOND = 1_000_000


def times(trace: Trace) -> list[int]:
    return [arrival.time for arrival in trace.arrivals]


def test_steady_arrivals_are_evenly_spaced() -> None:
    assert times(read_trace("steady:10/s,1s")) == list(range(0, SECOND, SECOND // 10))
    assert times(read_trace("steady:3/s, 1s")) == [0, 333_333, 666_666]
    assert len(times(read_trace("steady:100/m,1h"))) == 6000


def test_random_arrivals_are_those_of_their_seed() -> None:
    some = read_trace("random:10/s,60s")
    assert some.arrivals == read_trace("random:10/s,60s,seed=1").arrivals
    assert some.arrivals != read_trace("random:10/s,60s,seed=2").arrivals
    assert times(some)[:3] == [14_429, 202_444, 346_741]
    assert 540 <= len(some.arrivals) <= 660  # 600 on average; the deviation is 24
    assert 0 <= min(times(some)) <= max(times(some)) < 60 * SECOND


def test_edges_are_bursts_before_and_at_each_edge() -> None:
    found = times(read_trace("edges:2@60s,3m"))
    assert found == [
        *(59_999_000, 59_999_000, 60_000_000, 60_000_000),
        *(119_999_000, 119_999_000, 120_000_000, 120_000_000),
    ]


def test_a_fanout_comes_at_once() -> None:
    assert times(read_trace("fanout:1000")) == [0] * 1000


def test_times_are_taken_as_they_are() -> None:
    assert times(read_trace("times:61.5,5,5")) == [5 * SECOND, 5 * SECOND, 61_500_000]
    assert [one.label for one in read_trace("times:12:00:05,12:01").arrivals] == [
        "12:00:05",
        "12:01",
    ]


def test_a_cost_holds_for_each() -> None:
    assert {one.cost for one in read_trace("fanout:3,cost=2").arrivals} == {2}
    assert {one.cost for one in read_trace("steady:1/s,3s,cost=0.5").arrivals} == {Decimal("0.5")}
    assert {one.cost for one in read_trace("random:9/s,3s,seed=4,cost=.1").arrivals} == {
        Decimal("0.1")
    }


@pytest.mark.parametrize("form", [one.form for one in GENERATORS.values()])
def test_every_form_in_the_help_is_one(form: str) -> None:
    assert read_trace(form).arrivals


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steady:10/s", "'steady:10/s' is not of the form 'steady:10/s,60s'"),
        ("steady:10/s,60s,9", "is not of the form"),
        ("steady:", "is not of the form"),
        ("times:5,,6", "'' is no time"),
        ("steady:10,60s", "'10' is not a rate"),
        ("steady:0/s,60s", "count 0 is out of range"),
        ("steady:10/s,60", "'60' is no duration; allowed: a number and one of us, ms, s"),
        ("steady:10/s,60y", "'60y' is no duration"),
        ("steady:10/s,0s", "'0s' is out of range"),
        ("steady:1/s,0.0000001s", "is out of range; allowed: whole microseconds"),
        ("steady:10/s,60s,seed=1", "is not of the form .*; cost=... may follow"),
        ("steady:10/s,60s,cost", "is not of the form"),
        ("steady:1000000/s,2s", "has too many arrivals; allowed: 1 to 1,000,000"),
        ("random:1000000/s,2s", "allowed: 1 to 1,000,000"),
        ("random:10/s,60s,seed=x", "seed 'x' is not allowed: whole numbers from 0"),
        ("fanout:0", "count '0' is not allowed: whole numbers from 1"),
        ("fanout:1e3", "count '1e3'"),
        ("fanout:9999999", "allowed: 1 to 1,000,000"),
        ("fanout:3,cost=0", "cost .* is not allowed"),
        ("fanout:3,cost=x", "cost 'x' is not allowed"),
        ("edges:100,300s", "'' is no duration"),
        ("edges:100@60s,60s", "has no arrival"),
        ("edges:1000000@1s,60s", "allowed: 1 to 1,000,000"),
        ("times:5,late", "'late' is no time; allowed: seconds"),
        ("times:5,-1", "'-1' is no time"),
        ("times:1e12", "out of range; allowed: 0 to 4503599627 seconds"),
        ("times:1969-12-31T23:59Z", "out of range"),
        ("times:2026-02-30T00:00Z", "'2026-02-30T00:00Z' is no date and time"),
        ("random:1/d,1s", "has no arrival; allowed: 1 to 1,000,000"),
    ],
)
def test_wrong_text_is_named(text: str, says: str) -> None:
    with pytest.raises((CommandError, ThrottleError), match=says):
        read_trace(text)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0", 0),
        ("61.5", 61_500_000),
        (".5", 500_000),
        ("1.7e9", 1_700_000_000_000_000),
        ("12:01:05", 43_265_000_000),
        ("0:01", 60_000_000),
        ("00:00:00.25", 250_000),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01 00:00:01.5", 1_500_000),
        ("1970-01-01T01:00+01:00", 0),
        ("1970-01-01T00:00-00:30", 1_800_000_000),
    ],
)
def test_times_are_read(text: str, us: int) -> None:
    assert parse_time(text) == us


def test_seconds_are_written_exactly() -> None:
    assert format_seconds(500_000) == "0.5"
    assert format_seconds(10 * SECOND) == "10"


@pytest.mark.parametrize(
    "text",
    [
        "61,0.5\n5\n15,\n",
        "time,cost\n5\n15\n61,0.5\n",
        "\ufeffTime , Cost\r\n5 , 1\r\n\r\n15\r\n# 16\r\n61 , 0.5\r\n",
        "# made by hand\n  \n5,1.0\n15\n61,5e-1\n",
    ],
)
def test_csv_in_its_forms(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    trace = read_trace(str(path))
    assert [one[:2] for one in trace.arrivals] == [
        (5 * SECOND, 1),
        (15 * SECOND, 1),
        (61 * SECOND, Decimal("0.5")),
    ]
    assert trace.origin == 0
    assert trace.span == 56 * SECOND


def test_csv_with_dates(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at\n2026-07-01T09:30:00Z\n2026-07-01T11:30:01+02:00\n")
    trace = read_trace(str(path))
    assert trace.span == SECOND
    assert trace.origin == trace.arrivals[0].time
    assert trace.arrivals[0].label == "2026-07-01T09:30:00Z"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no arrival; allowed: 1 to 1,000,000"),
        ("time\n", "has no arrival; allowed: 1 to 1,000,000"),
        ("time\nlater\n", "line 2 of .*: 'later' is no time"),
        ("5\n\n6,x\n", "line 3 of .*: cost 'x' is not allowed"),
        ("5,0\n", "line 1 of .*: cost .* is not allowed"),
        ("5,1,2\n", "line 1 of .*: '5,1,2' has 3 columns"),
        ("5;1\n", "'5;1' is no time"),
        ("-5\n", "'-5' is no time"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=says):
        read_trace(str(path))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="cannot be read"):
        read_trace(str(path))
    with pytest.raises(CommandError, match="cannot be read"):
        read_trace(str(tmp_path))


@pytest.mark.parametrize("head", ["time,cost\n5,2\n", "cost,time\n2,5\n", "Cost, TIME\n2,5\n"])
def test_a_row_of_names_tells_the_columns(tmp_path: Path, head: str) -> None:
    (tmp_path / "trace.csv").write_text(head)
    assert read_trace(str(tmp_path / "trace.csv")).arrivals == (Arrival(5_000_000, 2, "5"),)


def test_a_first_row_with_a_number_is_no_row_of_names(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("tenminutespast,1\n5\n")
    with pytest.raises(CommandError, match=r"line 1 .*'tenminutespast' is no time"):
        read_trace(str(tmp_path / "trace.csv"))
