from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.simulation.generated import GENERATORS, find_generator, generate
from celery_throttle.cli.simulation.traces import (
    Arrival,
    TimeForm,
    Trace,
    format_seconds,
    parse_time,
    read,
)
from celery_throttle.errors import ThrottleError

SECOND = 1_000_000


def generated(text: str) -> Trace:
    generator = find_generator(text)
    assert generator is not None
    return generate(generator, text)


def times(trace: Trace) -> list[int]:
    return [arrival.time for arrival in trace.arrivals]


def test_steady_arrivals_are_evenly_spaced() -> None:
    assert times(generated("steady:10/s,1s")) == list(range(0, SECOND, SECOND // 10))
    assert times(generated("steady:3/s, 1s")) == [0, 333_333, 666_666]
    assert len(times(generated("steady:100/m,1h"))) == 6000


def test_random_arrivals_are_those_of_their_seed() -> None:
    some = generated("random:10/s,60s")
    assert some.arrivals == generated("random:10/s,60s,seed=1").arrivals
    assert some.arrivals != generated("random:10/s,60s,seed=2").arrivals
    assert times(some)[:3] == [14_429, 202_444, 346_741]
    assert 540 <= len(some.arrivals) <= 660  # 600 on average; the deviation is 24
    assert 0 <= min(times(some)) <= max(times(some)) < 60 * SECOND


def test_edges_are_bursts_before_and_at_each_edge() -> None:
    found = times(generated("edges:2@60s,3m"))
    assert found == [
        *(59_999_000, 59_999_000, 60_000_000, 60_000_000),
        *(119_999_000, 119_999_000, 120_000_000, 120_000_000),
    ]


def test_a_fanout_comes_at_once() -> None:
    assert times(generated("fanout:1000")) == [0] * 1000


def test_times_are_taken_as_they_are() -> None:
    assert times(generated("times:61.5,5,5")) == [5 * SECOND, 5 * SECOND, 61_500_000]
    assert {one.form for one in generated("times:12:00:05,12:01").arrivals} == {TimeForm.CLOCK}


def test_a_cost_holds_for_each() -> None:
    assert {one.cost for one in generated("fanout:3,cost=2").arrivals} == {2}
    assert {one.cost for one in generated("steady:1/s,3s,cost=0.5").arrivals} == {Decimal("0.5")}
    assert {one.cost for one in generated("random:9/s,3s,seed=4,cost=.1").arrivals} == {
        Decimal("0.1")
    }


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS)
def test_every_form_in_the_help_is_one(generator: object) -> None:
    form = getattr(generator, "form", "")
    assert find_generator(form) is generator
    assert generated(form).arrivals


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
        ("steady:1000000/s,2s", "has too many arrivals; allowed: 1,000,000"),
        ("random:1000000/s,2s", "allowed: 1,000,000"),
        ("random:10/s,60s,seed=x", "seed 'x' is not allowed: whole numbers from 0"),
        ("fanout:0", "count '0' is not allowed: whole numbers from 1"),
        ("fanout:1e3", "count '1e3'"),
        ("fanout:9999999", "allowed: 1,000,000"),
        ("fanout:3,cost=0", "cost .* is not allowed"),
        ("fanout:3,cost=x", "cost 'x' is not allowed"),
        ("edges:100,300s", "'' is no duration"),
        ("edges:100@60s,60s", "has no edge"),
        ("edges:100@1ms,60s", "has no edge"),
        ("edges:1000000@1s,60s", "allowed: 1,000,000"),
        ("times:5,late", "'late' is no time; allowed: seconds"),
        ("times:5,-1", "'-1' is no time"),
        ("times:5,12:00", "mixes seconds and times of a day; allowed: one of them"),
        ("times:1e12", "out of range; allowed: 0 to 4503599627 seconds"),
        ("times:1969-12-31T23:59Z", "out of range"),
        ("times:2026-02-30T00:00Z", "'2026-02-30T00:00Z' is no date and time"),
        ("random:1/d,1s", "holds no arrival"),
    ],
)
def test_wrong_text_is_named(text: str, says: str) -> None:
    with pytest.raises((CommandError, ThrottleError), match=says):
        generated(text)


@pytest.mark.parametrize(
    ("text", "us", "form"),
    [
        ("0", 0, TimeForm.SECONDS),
        ("61.5", 61_500_000, TimeForm.SECONDS),
        (".5", 500_000, TimeForm.SECONDS),
        ("1.7e9", 1_700_000_000_000_000, TimeForm.SECONDS),
        ("12:01:05", 43_265_000_000, TimeForm.CLOCK),
        ("00:00:00.25", 250_000, TimeForm.CLOCK),
        ("1970-01-01T00:00:01Z", 1_000_000, TimeForm.DATE),
        ("1970-01-01 00:00:01.5", 1_500_000, TimeForm.DATE),
        ("1970-01-01T01:00+01:00", 0, TimeForm.DATE),
        ("1970-01-01T00:00-00:30", 1_800_000_000, TimeForm.DATE),
    ],
)
def test_times_are_read(text: str, us: int, form: TimeForm) -> None:
    assert parse_time(text) == (us, form)


@pytest.mark.parametrize(
    "text", ["61.5", "12:01:05", "12:01:05.25", "2026-03-08T07:59:00Z", "2026-03-08T07:59:00.5Z"]
)
def test_times_are_written_as_they_are_read(text: str) -> None:
    trace = generated(f"times:{text}")
    assert trace.format_time(trace.arrivals[0].time) == text


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
    trace = read(str(path))
    assert trace.arrivals == (
        Arrival(5 * SECOND),
        Arrival(15 * SECOND),
        Arrival(61 * SECOND, Decimal("0.5")),
    )
    assert trace.origin == 0
    assert trace.span == 56 * SECOND


def test_csv_with_dates(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at\n2026-07-01T09:30:00Z\n2026-07-01T11:30:01+02:00\n")
    trace = read(str(path))
    assert trace.span == SECOND
    assert trace.arrivals[0].form is TimeForm.DATE
    assert trace.format_time(trace.origin) == "2026-07-01T09:30:00Z"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no arrival"),
        ("time\n", "holds no arrival"),
        ("time\nlater\n", "line 2 of .*: 'later' is no time"),
        ("5\n\n6,x\n", "line 3 of .*: cost 'x' is not allowed"),
        ("5,0\n", "line 1 of .*: cost .* is not allowed"),
        ("5,1,2\n", "line 1 of .*: '5,1,2' has 3 columns"),
        ("5;1\n", "'5;1' is no time"),
        ("5\n12:00\n", "mixes seconds and times of a day"),
        ("-5\n", "'-5' is no time"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(CommandError, match=says):
        read(str(path))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CommandError, match="cannot be read"):
        read(str(path))
    with pytest.raises(CommandError, match="cannot be read"):
        read(str(tmp_path))


@pytest.mark.parametrize("head", ["time,cost\n5,2\n", "cost,time\n2,5\n", "Cost, TIME\n2,5\n"])
def test_a_row_of_names_tells_the_columns(tmp_path: Path, head: str) -> None:
    (tmp_path / "trace.csv").write_text(head)
    assert read(str(tmp_path / "trace.csv")).arrivals == (Arrival(5_000_000, 2),)


def test_a_first_row_with_a_number_is_no_row_of_names(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("tenminutespast,1\n5\n")
    with pytest.raises(CommandError, match=r"line 1 .*'tenminutespast' is no time"):
        read(str(tmp_path / "trace.csv"))
