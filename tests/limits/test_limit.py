"""Rates and limits: parsing, errors and text. Also exceptions and Decision."""

from __future__ import annotations

import copy
import json
import pickle
import re
import struct
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from itertools import pairwise
from math import gcd
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import celery_throttle
from celery_throttle import errors
from celery_throttle.errors import (
    CostError,
    KeysFullError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    QueueFullError,
    RulesError,
    SentRequestsError,
    Throttled,
    ThrottleError,
    WaitTooLongError,
)
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MAX_EXACT
from celery_throttle.limits.grammar import ADAPTIVE, ALGORITHMS, CLAUSES, CONCURRENCY, OUTAGE_MODES
from celery_throttle.limits.key import check_name
from celery_throttle.limits.limit import (
    MAX_ADAPTIVE_RATIO,
    MAX_BOOKING_US,
    MAX_KEYS,
    MAX_PARTS,
    MAX_WAITING,
    Limit,
)
from celery_throttle.limits.rate import MAX_PERIOD_US, MAX_SLOTS, MAX_UNITS, Concurrency, Rate
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.store import definitions

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MONTH = 2_629_746 * SECOND  # a twelfth of 365.2425 days

METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")

rates = st.builds(Rate, st.integers(1, MAX_UNITS), st.integers(1, MAX_PERIOD_US)) | st.builds(
    lambda count, multiple, unit: Rate(count, multiple * unit),
    st.integers(1, 10_000),
    st.integers(1, 12),
    st.sampled_from([1, 1_000, SECOND, MINUTE, HOUR, DAY, 7 * DAY, MONTH]),
)
# No clock of these zones is changed at these hours.
calendars = st.builds(
    Calendar,
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
    st.integers(4, 22),
    st.integers(0, 59),
)


@st.composite
def meters(draw: st.DrawFn) -> Limit:
    rate = draw(rates)
    highest = min(MAX_UNITS, MAX_EXACT // rate.interval[0])
    return Limit(rate, draw(st.integers(1, highest)), draw(st.sampled_from(METERS)))


@st.composite
def fixed_windows(draw: st.DrawFn) -> Limit:
    window = draw(st.sampled_from(["epoch", "first-request"]) | calendars)
    count = draw(st.integers(1, MAX_UNITS))
    rate = Rate(count, draw(st.sampled_from([DAY, 7 * DAY, MONTH])))
    return Limit(
        rate if isinstance(window, Calendar) else draw(rates),
        algorithm="fixed-window",
        window=window,
    )


@st.composite
def sliding_windows(draw: st.DrawFn) -> Limit:
    parts = draw(st.integers(1, MAX_PARTS))
    period = parts * draw(st.integers(1, MAX_PERIOD_US // parts))
    return Limit(
        Rate(draw(st.integers(1, MAX_UNITS)), period),
        algorithm="sliding-window",
        parts=parts,
        oldest=draw(st.sampled_from(["weighted", "dropped"])),
    )


@st.composite
def adaptive_limits(draw: st.DrawFn) -> Limit:
    rate = draw(rates.filter(lambda rate: rate.interval[0] <= MAX_EXACT // MAX_ADAPTIVE_RATIO))
    most = min(MAX_UNITS, MAX_EXACT // MAX_ADAPTIVE_RATIO // rate.interval[0])
    return Limit(
        rate,
        draw(st.integers(1, most)),
        ADAPTIVE,
        lowest=draw(st.integers(-(-rate.count // MAX_ADAPTIVE_RATIO), rate.count)),
        latency_us=draw(st.none() | st.integers(1, HOUR)),
    )


@st.composite
def adaptive_slots(draw: st.DrawFn) -> Limit:
    slots = draw(st.integers(1, MAX_SLOTS))
    lowest, latency = draw(st.integers(1, slots)), draw(st.none() | st.integers(1, HOUR))
    return Limit(Concurrency(slots), lowest=lowest, latency_us=latency)


bare_limits = st.one_of(
    adaptive_limits(),
    meters(),
    fixed_windows(),
    sliding_windows(),
    st.builds(lambda rate: Limit(rate, algorithm="sliding-log"), rates),
    st.builds(lambda slots: Limit(Concurrency(slots)), st.integers(1, MAX_SLOTS)),
    adaptive_slots(),
)
limits = bare_limits | st.builds(
    replace,
    bare_limits,
    max_keys=st.none() | st.integers(1, MAX_KEYS),
    max_waiting=st.none() | st.integers(1, MAX_WAITING),
    outage=st.sampled_from(OUTAGE_MODES),
)


def assert_names(error: BaseException, offending: object) -> None:
    assert repr(offending) in str(error)
    assert re.search(r"; allowed\b.*: |; write |allowed: ", str(error)), error


HEADS = ("10/s", "7/d", "9/month", "3 at once", "1/7us", "5")


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A rate or slots, and clauses that may not apply or may contradict each other."""
    head = draw(st.sampled_from([*HEADS, "adaptive 2..9/s", "adaptive 9..2/s"]))
    clauses = [
        *(f"using {algorithm}" for algorithm in ALGORITHMS),
        "burst 3",
        "burst 0",
        "from first-request",
        "from epoch",
        "in UTC",
        "in America/New_York",
        "at 07:30",
        "at 02:30",
        "parts 7",
        "parts 10",
        "oldest dropped",
        "oldest weighted",
        "latency 20ms",
        "latency 0s",
        "max-keys 5",
        "max-keys 0",
        "max-waiting 7",
        "outage open",
        "outage never",
    ]
    return " ".join([head, *draw(st.lists(st.sampled_from(clauses), max_size=4))])


class TestRate:
    @pytest.mark.parametrize(
        ("text", "count", "period_us"),
        [
            ("100/s", 100, SECOND),
            ("5/10s", 5, 10 * SECOND),
            ("1/500ms", 1, 500_000),
            ("1/250us", 1, 250),
            ("5000/day", 5000, DAY),
            ("5000/h", 5000, HOUR),
            ("10/m", 10, MINUTE),
            ("3/2w", 3, 14 * DAY),
            ("1/366d", 1, MAX_PERIOD_US),
            ("1000/month", 1000, MONTH),
            ("1/12months", 1, 12 * MONTH),
            ("10_000/s", 10_000, SECOND),
            ("1/1_000ms", 1, SECOND),
            ("007/s", 7, SECOND),
            ("100/S", 100, SECOND),
            ("2/5 Minutes", 2, 5 * MINUTE),
            ("  7 / 3 hours ", 7, 3 * HOUR),
            ("7/\t3hours\n", 7, 3 * HOUR),
        ],
    )
    def test_reads(self, text: str, count: int, period_us: int) -> None:
        assert Rate.parse(text) == Rate(count, period_us)

    @pytest.mark.parametrize(
        ("words", "period_us"),
        [
            ("us", 1),
            ("ms", 1_000),
            ("s sec second seconds", SECOND),
            ("m min minute minutes", MINUTE),
            ("h hour hours", HOUR),
            ("d day days", DAY),
            ("w week weeks", 7 * DAY),
            ("month months", MONTH),
        ],
    )
    def test_knows_every_unit(self, words: str, period_us: int) -> None:
        for word in words.split():
            assert Rate.parse(f"1/{word}") == Rate.parse(f"1/{word.upper()}") == Rate(1, period_us)

    @pytest.mark.parametrize(
        ("text", "offending"),
        [
            ("", ""),
            ("100", "100"),
            ("100 per s", "100 per s"),
            ("fast", "fast"),
            ("1/s/s", "1/s/s"),
            ("100/s!", "100/s!"),
            ("100/5 s 3", "100/5 s 3"),
            ("/s", ""),
            ("100/", "100/"),
            ("100/5", "100/5"),
            ("100/fortnight", "fortnight"),
            ("100/5moon", "moon"),
            ("100/mo", "mo"),
            ("1.5/s", "1.5"),
            ("1/1.5s", "1.5"),
            ("1e3/s", "1e3"),
            ("1 0/s", "1 0"),
            ("1__0/s", "1__0"),
            ("1_/s", "1_"),
            ("+1/s", "+1"),
            ("\N{ARABIC-INDIC DIGIT ONE}/s", "\N{ARABIC-INDIC DIGIT ONE}"),
            (None, None),
            (100, 100),
            (b"100/s", b"100/s"),
        ],
    )
    def test_refuses_what_is_no_rate(self, text: Any, offending: object) -> None:
        with pytest.raises(LimitSyntaxError) as caught:
            Rate.parse(text)
        assert_names(caught.value, offending)

    @pytest.mark.parametrize(
        "text",
        [
            "0/s",
            "-5/s",
            "1/0s",
            "1/-3s",
            "1000000001/s",
            "1/367d",
            "1/53w",
            "1/31622400001ms",
            "1/13month",
        ],
    )
    def test_refuses_numbers_out_of_range(self, text: str) -> None:
        with pytest.raises(LimitValueError) as caught:
            Rate.parse(text)
        assert_names(caught.value, text)

    @pytest.mark.parametrize("text", ["9" * 5000 + "/s", "1/" + "9" * 5000 + "s", "9" * 29 + "/s"])
    def test_a_huge_number_is_refused_in_a_short_message(self, text: str) -> None:
        with pytest.raises(LimitValueError, match=r"'9999.*allowed|'1/999.*allowed") as caught:
            Rate.parse(text)
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize(
        "number", [0, -1, 1.5, True, "1", None, 10**20, pytest.param(10**5000, id="5001 digits")]
    )
    def test_refuses_such_fields(self, number: Any) -> None:
        with pytest.raises(LimitValueError, match=r"count .* allowed: whole numbers from 1 to"):
            Rate(number, SECOND)
        with pytest.raises(LimitValueError, match=r"period .* allowed: whole .*\(366 days\)"):
            Rate(1, number)

    @pytest.mark.parametrize(
        ("text", "interval"),
        [
            ("100/s", (10_000, 1)),
            ("3/s", (1_000_000, 3)),
            ("6/2s", (1_000_000, 3)),
            ("7/w", (DAY, 1)),
            ("1000/month", (MONTH // 1000, 1)),
            ("1000000000/us", (1, 1_000_000_000)),
        ],
    )
    def test_interval_is_a_reduced_fraction(self, text: str, interval: tuple[int, int]) -> None:
        assert Rate.parse(text).interval == interval

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("100/s", "100/s"),
            ("100/1000 ms", "100/s"),
            ("5/10s", "5/10s"),
            ("1/500ms", "1/500ms"),
            ("5000/day", "5000/d"),
            ("5000/24h", "5000/d"),
            ("1/90 minutes", "1/90m"),
            ("1/7d", "1/w"),
            ("1/30d", "1/30d"),
            ("1/Months", "1/month"),
            ("2/2629746s", "2/month"),
            ("1/12months", "1/12month"),
            ("1/1001us", "1/1001us"),
            ("10_000/s", "10000/s"),
        ],
    )
    def test_writes_the_shortest_text(self, text: str, canonical: str) -> None:
        assert str(Rate.parse(text)) == canonical

    @given(rates)
    def test_text_reads_back(self, rate: Rate) -> None:
        assert Rate.parse(str(rate)) == rate

    @given(rates)
    def test_interval_is_period_by_count(self, rate: Rate) -> None:
        exact = Fraction(rate.period_us, rate.count)
        assert rate.interval == (exact.numerator, exact.denominator)

    @given(st.text())
    def test_any_text_is_a_rate_or_a_limit_error(self, text: str) -> None:
        try:
            rate = Rate.parse(text)
        except LimitError:
            return
        assert Rate.parse(str(rate)) == rate


class TestLimit:
    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("100/s", Limit(Rate(100, SECOND))),
            ("100/s burst 20", Limit(Rate(100, SECOND), 20)),
            ("100/s using gcra", Limit(Rate(100, SECOND))),
            ("100/s burst 20 using token-bucket", Limit(Rate(100, SECOND), 20, "token-bucket")),
            ("100/s using token-bucket burst 20", Limit(Rate(100, SECOND), 20, "token-bucket")),
            ("100/s burst 9 using leaky-bucket", Limit(Rate(100, SECOND), 9, "leaky-bucket")),
            ("100/s burst 9 using leaky-queue", Limit(Rate(100, SECOND), 9, "leaky-queue")),
            (" 5 / 10 sec  BURST\t1_000\nUsing  GCRA ", Limit(Rate(5, 10 * SECOND), 1000)),
            ("9/h using fixed-window", Limit(Rate(9, HOUR), algorithm="fixed-window")),
            ("9/h using sliding-log", Limit(Rate(9, HOUR), algorithm="sliding-log")),
            ("9/h Using Sliding-Window", Limit(Rate(9, HOUR), algorithm="sliding-window")),
            (
                "9/h using fixed-window FROM First-Request",
                Limit(Rate(9, HOUR), algorithm="fixed-window", window="first-request"),
            ),
            (
                "9/h from epoch using fixed-window",
                Limit(Rate(9, HOUR), algorithm="fixed-window"),
            ),
            (
                "9/d using fixed-window in Europe/Berlin",
                Limit(Rate(9, DAY), algorithm="fixed-window", window=Calendar("Europe/Berlin")),
            ),
            (
                "9/24h IN Europe/Berlin  AT 7:05 using fixed-window",
                Limit(
                    Rate(9, DAY), algorithm="fixed-window", window=Calendar("Europe/Berlin", 7, 5)
                ),
            ),
            (
                "9/7d at 23:59 using fixed-window",
                Limit(Rate(9, 7 * DAY), algorithm="fixed-window", window=Calendar("UTC", 23, 59)),
            ),
            (
                "9/month using fixed-window",
                Limit(Rate(9, MONTH), algorithm="fixed-window", window=Calendar()),
            ),
            (
                "9/month using fixed-window from first-request",
                Limit(Rate(9, MONTH), algorithm="fixed-window", window="first-request"),
            ),
            (
                "9/h using sliding-window parts 60 oldest dropped",
                Limit(Rate(9, HOUR), algorithm="sliding-window", parts=60, oldest="dropped"),
            ),
            (
                "9/h oldest Weighted parts 1_00 using sliding-window",
                Limit(Rate(9, HOUR), algorithm="sliding-window", parts=100),
            ),
            ("10 at once", Limit(Concurrency(10))),
            (" 1_0\tAt  ONCE\n", Limit(Concurrency(10))),
            (
                "10 at once outage Closed max-keys 1_000",
                Limit(Concurrency(10), max_keys=1000, outage="closed"),
            ),
            (
                "9/d max-waiting 7 using fixed-window Max-Keys 5 at 07:30 outage open",
                Limit(
                    Rate(9, DAY),
                    algorithm="fixed-window",
                    window=Calendar("UTC", 7, 30),
                    max_keys=5,
                    max_waiting=7,
                    outage="open",
                ),
            ),
            ("100/s outage local", Limit(Rate(100, SECOND))),
        ],
    )
    def test_reads(self, text: str, limit: Limit) -> None:
        assert Limit.parse(text) == Limit.of(text) == limit

    def test_burst_is_one_and_the_algorithm_gcra_unless_given(self) -> None:
        limit = Limit.parse("100/s")
        assert (limit.burst, limit.algorithm) == (1, "gcra")

    @pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - set(METERS)))
    def test_where_there_is_no_burst_it_is_the_count(self, algorithm: str) -> None:
        limit = Limit.parse(f"100/s using {algorithm}")
        assert limit.burst == 100
        assert limit == Limit(Rate(100, SECOND), 100, algorithm)
        with pytest.raises(LimitValueError, match=f"'burst' does not apply to {algorithm}; it is"):
            Limit(Rate(100, SECOND), 99, algorithm)

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            ("adaptive 10..100/s", Limit(Rate(100, SECOND), 1, ADAPTIVE, lowest=10)),
            ("adaptive 2..50 at once", Limit(Concurrency(50), lowest=2)),
            (
                "Adaptive 2 .. 50 at once latency 2s max-waiting 5",
                Limit(Concurrency(50), lowest=2, latency_us=2 * SECOND, max_waiting=5),
            ),
            ("Adaptive  5 .. 5 / h", Limit(Rate(5, HOUR), 1, ADAPTIVE, lowest=5)),
            (
                "adaptive 1..1000/m latency 500ms burst 20 outage open",
                replace(
                    Limit(Rate(1000, MINUTE), 20, ADAPTIVE, lowest=1, latency_us=500_000),
                    outage="open",
                ),
            ),
        ],
    )
    def test_an_adaptive_limit_has_two_bounds(self, text: str, limit: Limit) -> None:
        assert Limit.parse(text) == limit == Limit.parse(str(limit))

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("adaptive 10/s", "'10/s' is not a range of rates; allowed: '<lowest>..<highest>/"),
            ("adaptive 0..10/s", "lowest count 0 is out of range; allowed: whole numbers from 1"),
            ("adaptive 11..10/s", "lowest count 11 is out of range; allowed: whole numbers from 1"),
            ("adaptive 1..1001/s", "is too far from the highest; allowed: at least a 1000th of"),
            (
                "adaptive x..10/s",
                "lowest count 'x' in 'adaptive x..10/s' is not a whole number; allowed",
            ),
            ("adaptive 1..10/s using gcra", "names two algorithms; allowed: one"),
            ("10/s using adaptive", "has no lowest rate; allowed: 'adaptive <lowest>..10/s'"),
            ("10/s latency 3ms", "'latency' does not apply to gcra; it is for adaptive"),
            ("adaptive 1..10/s latency 3", "'3' is no duration; allowed: a number and one of"),
            ("adaptive 1..10/s latency 0ms", "duration '0ms' is out of range; allowed"),
            ("adaptive 1..10/s latency 2h", "is out of range; allowed"),
            ("adaptive 1..10/s parts 2", "'parts' does not apply to adaptive; it is for sliding"),
            ("3 at once latency 3ms", "'latency' does not apply to '3 at once'"),
            ("adaptive 3 at once", "'3' is not a range of numbers of slots; allowed: '<lowest>.."),
            ("adaptive 0..3 at once", "lowest number of slots 0 is out of range; allowed: whole"),
            ("adaptive 4..3 at once", "lowest number of slots 4 is out of range; allowed: whole"),
            (
                "adaptive x..3 at once",
                "lowest number of slots 'x' in 'adaptive x..3 at once' is not",
            ),
            ("adaptive 1..3 at once latency 2h", "is out of range; allowed"),
            ("adaptive 1..3 at once burst 2", "'burst' does not apply to 'adaptive 1..3 at once'"),
            ("adaptive 1..3 at once shadow", "'shadow' does not apply to 'at once'"),
        ],
    )
    def test_an_adaptive_limit_that_is_wrong_says_why(self, text: str, why: str) -> None:
        with pytest.raises(LimitError) as caught:
            Limit.parse(text)
        assert why in str(caught.value)
        assert repr(text) in str(caught.value)

    def test_only_adaptive_limits_have_a_lowest_number(self) -> None:
        with pytest.raises(LimitValueError, match="lowest 2 is for adaptive limits only"):
            Limit(Rate(3, SECOND), lowest=2)
        with pytest.raises(LimitValueError, match="lowest number of slots 4 is out of range"):
            Limit(Concurrency(3), lowest=4)

    def test_slots_are_a_limit_of_an_algorithm_of_their_own(self) -> None:
        limit = Limit.parse("10 at once")
        assert (limit.rate, limit.burst, limit.algorithm) == (Concurrency(10), 10, CONCURRENCY)
        assert (limit.calendar_period, limit.ticks) == (None, (0, 1))

    @pytest.mark.parametrize(
        ("text", "period"),
        [
            ("1/d", "d"),
            ("1/24h", "d"),
            ("1/w", "w"),
            ("1/month", "month"),
            ("1/2d", None),
            ("1/30d", None),
            ("1/h", None),
        ],
    )
    def test_knows_the_periods_that_a_calendar_has(self, text: str, period: str | None) -> None:
        assert Limit.parse(text).calendar_period == period

    def test_of_passes_a_limit_through(self) -> None:
        limit = Limit.parse("100/s burst 20")
        assert Limit.of(limit) is limit

    @pytest.mark.parametrize(
        ("text", "offending"),
        [
            ("", ""),
            ("burst 20", "burst 20"),
            ("using gcra", "using gcra"),
            ("100/s 20", "100/s 20"),
            ("100/s brust 20", "100/s brust 20"),
            ("100/sburst 20", "100/sburst 20"),
            ("100/s burst20", "100/s burst20"),
            ("100/s burst", ""),
            ("100/s burst twenty", "twenty"),
            ("100/s burst 1.5", "1.5"),
            ("100/s burst 20 30", "20 30"),
            ("100/s burst=20", "=20"),
            ("100/s burst using gcra", ""),
            ("100/s burst 2 burst 3", "100/s burst 2 burst 3"),
            ("100/s using gcra Using gcra", "100/s using gcra Using gcra"),
            ("1/d using fixed-window in UTC in UTC", "1/d using fixed-window in UTC in UTC"),
            ("1/d using fixed-window at", ""),
            ("1/d using fixed-window at noon", "noon"),
            ("1/d using fixed-window at 7", "7"),
            ("1/d using fixed-window at 24:00", "24:00"),
            ("1/d using fixed-window at 07:60", "07:60"),
            ("1/d using fixed-window at 07:05:00", "07:05:00"),
            (
                "1/d using fixed-window in UTC from epoch",
                "1/d using fixed-window in UTC from epoch",
            ),
            (
                "1/d using fixed-window at 07:00 from first-request",
                "1/d using fixed-window at 07:00 from first-request",
            ),
            ("1/s using sliding-window parts", ""),
            ("1/s using sliding-window parts two", "two"),
            ("1/s using sliding-window parts 1.5", "1.5"),
            ("at once", "at once"),
            ("10 atonce", "10 atonce"),
            ("10at once", "10at once"),
            ("ten at once", "ten"),
            ("1.5 at once", "1.5"),
            ("10/s at once", "10/s"),
            ("10 at once maximum 5", "maximum 5"),
            ("10 at oncemax-keys 5", "10"),
            ("100/s max-keys", ""),
            ("100/s max-keys many", "many"),
            ("100/s max_keys 5", "100/s max_keys 5"),
            ("100/s max-waiting 1.5", "1.5"),
            ("100/s max-keys 5 max-keys 5", "100/s max-keys 5 max-keys 5"),
            (None, None),
            (100, 100),
            (b"100/s", b"100/s"),
            (["100/s"], ["100/s"]),
        ],
    )
    def test_refuses_what_is_no_limit(self, text: Any, offending: object) -> None:
        for read in (Limit.parse, Limit.of):
            with pytest.raises(LimitSyntaxError) as caught:
                read(text)
            assert_names(caught.value, offending)

    @pytest.mark.parametrize(
        ("text", "offending"),
        [
            ("0/s burst 2", "0/s"),
            ("100/s burst 0", "100/s burst 0"),
            ("100/s burst -1", "100/s burst -1"),
            ("100/s burst 1000000001", "100/s burst 1000000001"),
            ("100/s using", ""),
            ("100/s using leaky", "leaky"),
            ("100/s using concurrency", "concurrency"),
            ("100/s using leaky burst 3 parts 7", "leaky"),
            ("0 at once", "0 at once"),
            ("-1 at once", "-1 at once"),
            ("100001 at once", "100001 at once"),
            ("1/s using sliding-window parts 0", "1/s using sliding-window parts 0"),
            ("1/s using sliding-window parts -2", "1/s using sliding-window parts -2"),
            ("1/s using sliding-window parts 101", "1/s using sliding-window parts 101"),
            ("1/s using sliding-window parts 3", "1/s using sliding-window parts 3"),
            ("1/3us using sliding-window parts 2", "1/3us using sliding-window parts 2"),
            ("1/s using sliding-window oldest", ""),
            ("1/s using sliding-window oldest sold", "sold"),
            ("1/d using fixed-window from", ""),
            ("1/d using fixed-window from monday", "monday"),
            ("1/d using fixed-window in", ""),
            ("1/d using fixed-window in Mars/Base", "Mars/Base"),
            ("1/d using fixed-window in Europe", "Europe"),
            ("1/d using fixed-window in ../UTC", "../UTC"),
            ("1/d using fixed-window in /etc/passwd", "/etc/passwd"),
            ("1/d using fixed-window in U\0TC", "U\0TC"),
            ("1/h using fixed-window in UTC", "1/h using fixed-window in UTC"),
            ("1/2d using fixed-window at 07:00", "1/2d using fixed-window at 07:00"),
            ("1/30d using fixed-window in UTC", "1/30d using fixed-window in UTC"),
            ("100/s using gcra twice", "gcra twice"),
            ("1/d burst 52125", "1/d burst 52125"),
            ("10 at once burst 3", "10 at once burst 3"),
            ("10 at once using gcra", "10 at once using gcra"),
            ("10 at once from epoch", "10 at once"),
            ("100/s max-keys 0", "100/s max-keys 0"),
            ("100/s max-keys 1000000001", "100/s max-keys 1000000001"),
            ("10 at once max-waiting -1", "10 at once max-waiting -1"),
            ("100/s outage", ""),
            ("100/s outage never", "never"),
            ("10 at once outage fail open", "fail open"),
        ],
    )
    def test_refuses_values_out_of_range(self, text: str, offending: str) -> None:
        with pytest.raises(LimitValueError) as caught:
            Limit.parse(text)
        assert_names(caught.value, offending)

    @pytest.mark.parametrize(
        "text", ["9" * 5000 + " at once", f"1/s using sliding-window parts {'9' * 5000}"]
    )
    def test_a_huge_number_is_refused_in_a_short_message(self, text: str) -> None:
        with pytest.raises(LimitValueError, match=r"'9999.*allowed") as caught:
            Limit.parse(text)
        assert len(str(caught.value)) < 300

    @pytest.mark.parametrize("value", [0, -1, 1.5, True, "5", 10**9 + 1])
    def test_refuses_such_bounds(self, value: Any) -> None:
        for rate in (Rate(1, SECOND), Concurrency(1)):
            with pytest.raises(LimitValueError, match=r"max-keys .* allowed: whole numbers from 1"):
                Limit(rate, max_keys=value)
            with pytest.raises(LimitValueError, match=r"max-waiting .* allowed: whole numbers"):
                Limit(rate, max_waiting=value)

    @pytest.mark.parametrize("value", ["", "never", None, 5, ["open"]])
    def test_refuses_such_outages(self, value: Any) -> None:
        with pytest.raises(LimitValueError, match="allowed: local, open, closed") as caught:
            Limit(Rate(1, SECOND), outage=value)
        assert_names(caught.value, value)

    @pytest.mark.parametrize("algorithm", ["sliding", "", "GCRA", CONCURRENCY, None, 5, ["gcra"]])
    def test_an_unknown_algorithm_is_told_the_known_ones(self, algorithm: Any) -> None:
        known = ", ".join(ALGORITHMS)
        with pytest.raises(LimitValueError, match=f"allowed: {known}$") as caught:
            Limit(Rate(1, SECOND), 1, algorithm)
        assert_names(caught.value, algorithm)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize(
        ("clause", "fields"),
        [
            ("burst 1", {"burst": 1}),
            ("from first-request", {"window": "first-request"}),
            ("in UTC", {"window": Calendar()}),
            ("at 07:00", {"window": Calendar("UTC", 7)}),
            ("parts 2", {"parts": 2}),
            ("oldest dropped", {"oldest": "dropped"}),
        ],
    )
    def test_a_clause_that_means_nothing_to_an_algorithm(
        self, algorithm: str, clause: str, fields: dict[str, Any]
    ) -> None:
        keyword, text = clause.partition(" ")[0], f"100/d {clause} using {algorithm}"
        rate = Rate(100, DAY)
        if keyword in ALGORITHMS[algorithm]:
            assert Limit.parse(text) == Limit(rate, algorithm=algorithm, **fields)
            return
        takers = ", ".join(name for name, clauses in CLAUSES.items() if keyword in clauses)
        why = f"'{keyword}' does not apply to {algorithm}; it is for {takers}"
        with pytest.raises(LimitValueError) as caught:
            Limit.parse(text)
        assert str(caught.value) == f"{text!r}: {why}"
        with pytest.raises(LimitValueError, match=f"does not apply to {algorithm}; it is for"):
            Limit(rate, algorithm=algorithm, **fields)

    @pytest.mark.parametrize("parts", [0, -1, 1.5, True, "1", None, MAX_PARTS + 1])
    def test_refuses_such_parts(self, parts: Any) -> None:
        with pytest.raises(LimitValueError, match=r"parts .* allowed: whole numbers from 1 to"):
            Limit(Rate(1, SECOND), algorithm="sliding-window", parts=parts)

    @pytest.mark.parametrize("window", ["", "monday", None, 5, ["epoch"]])
    def test_refuses_such_windows(self, window: Any) -> None:
        with pytest.raises(LimitValueError, match="allowed: 'first-request'") as caught:
            Limit(Rate(1, DAY), algorithm="fixed-window", window=window)
        assert_names(caught.value, window)

    @pytest.mark.parametrize(
        ("rate", "highest"), [("1/d", 52_124), ("5000/d", 260_624_978), ("999983/d", 52_124)]
    )
    def test_burst_is_bounded_by_what_doubles_count_exactly(self, rate: str, highest: int) -> None:
        assert Limit(Rate.parse(rate), highest).burst == highest
        with pytest.raises(LimitValueError, match=f"at most {highest},"):
            Limit(Rate.parse(rate), highest + 1)

    @pytest.mark.parametrize(
        "burst", [0, -1, 1.5, True, "1", 10**10, pytest.param(10**5000, id="5001 digits")]
    )
    def test_refuses_such_bursts(self, burst: Any) -> None:
        with pytest.raises(LimitValueError, match=r"burst .* allowed: whole numbers from 1 to"):
            Limit(Rate(1, SECOND), burst)

    def test_text_is_no_rate(self) -> None:
        rate: Any = "100/s"
        with pytest.raises(LimitValueError, match="'100/s' is not a Rate"):
            Limit(rate)

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("100/sec burst 1 using gcra", "100/s"),
            ("100/s using token-bucket burst 20", "100/s burst 20 using token-bucket"),
            ("60/60s burst 2", "60/m burst 2"),
            ("100/s using leaky-queue", "100/s using leaky-queue"),
            ("9/60m using fixed-window from epoch", "9/h using fixed-window"),
            (
                "9/h from first-request using fixed-window",
                "9/h using fixed-window from first-request",
            ),
            ("9/24h at 00:00 using fixed-window", "9/d using fixed-window in UTC"),
            (
                "9/d in Asia/Kolkata using fixed-window at 7:05",
                "9/d using fixed-window at 07:05 in Asia/Kolkata",
            ),
            ("9/month using fixed-window", "9/month using fixed-window in UTC"),
            ("9/h oldest weighted parts 1 using sliding-window", "9/h using sliding-window"),
            (
                "9/h oldest dropped parts 6 using sliding-window",
                "9/h using sliding-window parts 6 oldest dropped",
            ),
            ("10  AT once", "10 at once"),
            (
                "9/h outage open max-waiting 7 parts 6 max-keys 5 using sliding-window",
                "9/h using sliding-window parts 6 max-keys 5 max-waiting 7 outage open",
            ),
            ("10 at once outage local max-waiting 07", "10 at once max-waiting 7"),
        ],
    )
    def test_writes_only_what_is_not_the_default(self, text: str, canonical: str) -> None:
        assert str(Limit.parse(text)) == canonical

    @given(limits)
    def test_text_reads_back(self, limit: Limit) -> None:
        assert Limit.parse(str(limit)) == limit

    @given(
        st.text()
        | st.from_regex(r"\A\d{1,12}/\d{0,3}[smhd]( (burst|using) [\w-]+){0,3}\Z")
        | texts()
    )
    def test_any_text_is_a_limit_or_a_limit_error(self, text: str) -> None:
        try:
            limit = Limit.parse(text)
        except LimitError:
            return
        assert Limit.parse(str(limit)) == limit

    def test_is_a_value(self) -> None:
        limit = Limit.parse("100/s burst 20")
        assert pickle.loads(pickle.dumps(limit)) == limit  # noqa: S301 - made in this line
        assert len({limit, Limit.parse("100/sec burst 20")}) == 1
        attribute = "burst"
        with pytest.raises(FrozenInstanceError):
            setattr(limit, attribute, 3)


class TestConcurrency:
    @pytest.mark.parametrize(
        "slots", [0, -1, 1.5, True, "1", None, MAX_SLOTS + 1, pytest.param(10**5000, id="long")]
    )
    def test_refuses_such_fields(self, slots: Any) -> None:
        with pytest.raises(LimitValueError, match=r"slots .* allowed: whole numbers from 1 to"):
            Concurrency(slots)

    def test_is_a_value(self) -> None:
        assert Concurrency(MAX_SLOTS) == Concurrency(100_000)
        assert str(Concurrency(3)) == "3 at once"


class TestTicks:
    """Amounts are counted in ticks; see `Limit.ticks`."""

    @pytest.mark.parametrize(
        ("text", "ticks"),
        [
            ("100/s burst 20", (10_000 * 100, 1 * 100)),  # a millionth of a unit: one tick
            ("3/s", (1_000_000, 3)),
            ("5/10s", (2_000_000, 1)),
            ("1/ms", (1_000 * 1_000, 1_000)),
            ("1000000000/us", (10, 10_000_000_000)),  # as fine as it can be, with 20 ms ahead
            ("1/d burst 52124", (86_400_000_000, 1)),
            ("11/month", (2_629_746_000_000, 11)),
        ],
    )
    def test_are_what_scripts_count_in(self, text: str, ticks: tuple[int, int]) -> None:
        assert Limit.parse(text).ticks == ticks

    @given(limits)
    @example(Limit(Rate(129, 255), 132_458_813))  # above half of what can be counted
    @example(Limit(Rate(1, 63 * DAY), 414))
    def test_are_the_interval_and_counted_exactly(self, limit: Limit) -> None:
        if not isinstance(limit.rate, Rate):
            assert limit.ticks == (0, 1)
            return
        p, q = limit.ticks
        assert Fraction(p, q) == Fraction(limit.rate.period_us, limit.rate.count)
        if limit.algorithm in METERS:
            # What is booked ahead comes on top of the burst.
            assert limit.burst * p <= MAX_EXACT
            assert MAX_BOOKING_US * q <= MAX_EXACT // 4
            reduced, per_us = limit.rate.interval
            finest = 1_000_000 // gcd(reduced, 1_000_000)
            fits = limit.burst * reduced * finest <= MAX_EXACT // 2
            fits = fits and MAX_BOOKING_US * per_us * finest <= MAX_EXACT // 4
            assert (fits or finest == 1) == (p % 1_000_000 == 0)


class TestDefinition:
    """Definitions as scripts read them; see `definition.lua`."""

    NOW = 1_772_323_200 * SECOND  # 2026-03-01 in UTC

    @staticmethod
    def pack(*limits: Limit, now: int = NOW) -> definitions.Definition:
        return definitions.pack(limits, now, "key-cap")

    def unpacked(self, *limits: Limit, now: int = NOW) -> tuple[list[tuple[int, list[float]]], str]:
        """Return tags and numbers, and the text."""
        packed, text, *_ = self.pack(*limits, now=now)
        *_, several, shadows = struct.unpack_from("<ddBB", packed)
        assert shadows == 0
        place, found = 18, list[tuple[int, list[float]]]()
        for _ in range(several):
            tag, count = struct.unpack_from("<BH", packed, place)
            found.append((tag, list(struct.unpack_from(f"<{count}d", packed, place + 3))))
            place += 3 + 8 * count
        key_cap = packed[place:].decode()
        assert key_cap == ("key-cap" if any(limit.max_keys for limit in limits) else "")
        return found, text

    @pytest.mark.parametrize(
        ("text", "tag", "numbers"),
        [
            ("100/s burst 20", 1, [20, 1_000_000, 100]),
            ("100/s burst 20 using token-bucket", 2, [20, 1_000_000, 100]),
            ("3/s using leaky-bucket", 3, [1, 1_000_000, 3]),
            ("5/10s using leaky-queue", 4, [1, 2_000_000, 1]),
            ("9/10s using fixed-window", 5, [9, 10_000_000, 9, 10_000_000, 0]),
            ("9/10s using fixed-window from first-request", 5, [9, 10_000_000, 9, 10_000_000, 1]),
            ("9/10s using sliding-log", 6, [9, 10_000_000, 9, 10_000_000]),
            ("9/10s using sliding-window parts 5", 7, [9, 10_000_000, 9, 2_000_000, 5, 1]),
            (
                "9/10s using sliding-window parts 5 oldest dropped",
                7,
                [9, 10_000_000, 9, 2_000_000, 5, 0],
            ),
            ("10 at once", 8, [10, 0, 1]),
        ],
    )
    def test_is_what_scripts_read(self, text: str, tag: int, numbers: list[float]) -> None:
        assert self.unpacked(Limit.parse(text)) == ([(tag, numbers)], text)

    def test_several_limits_are_packed_one_after_the_other(self) -> None:
        texts = ["3/s", "9/10s using sliding-log", "10 at once"]
        assert self.unpacked(*map(Limit.parse, texts)) == (
            [(1, [1, 1_000_000, 3]), (6, [9, 10_000_000, 9, 10_000_000]), (8, [10, 0, 1])],
            "3/s; 9/10s using sliding-log; 10 at once",
        )

    @pytest.mark.parametrize(
        ("texts", "bounds"),
        [
            (["3/s"], (0, 0)),
            (["3/s max-keys 5"], (5, 0)),
            (["3/s max-waiting 7 outage open", "10 at once max-keys 5"], (5, 7)),
            (["3/s max-keys 5 max-waiting 7", "9/h max-keys 4 max-waiting 8", "1/s"], (4, 7)),
        ],
    )
    def test_tells_the_strictest_bounds(self, texts: list[str], bounds: tuple[int, int]) -> None:
        packed = self.pack(*map(Limit.parse, texts)).numbers
        assert struct.unpack_from("<dd", packed) == bounds
        assert packed.endswith(b"key-cap") == bool(bounds[0])

    def test_tells_the_windows_of_a_calendar_around_a_time(self) -> None:
        limit = Limit.parse("9/d using fixed-window at 07:00 in America/New_York")
        assert isinstance(limit.window, Calendar)
        ((tag, (burst, p, q, period, *starts)),), text = self.unpacked(limit)
        assert (tag, burst, p / q, period, text) == (5, 9, DAY / 9, 0, str(limit))
        assert starts == limit.window.starts("d", self.NOW, len(starts) - 1)
        assert starts[1] <= self.NOW < starts[2]
        assert len(starts) >= 32
        assert DAY - HOUR in {after - before for before, after in pairwise(starts)}

    @given(st.lists(limits, min_size=1, max_size=5), st.integers(0, 4_000_000_000 * SECOND))
    def test_is_exact_and_reads_back(self, several: list[Limit], now: int) -> None:
        assert definitions.unpack(self.pack(*several, now=now).text.encode()) == tuple(several)
        found, text = self.unpacked(*several, now=now)
        assert text == "; ".join(map(str, several))
        for limit, (tag, numbers) in zip(several, found, strict=True):
            assert tag == definitions.TAGS[limit.algorithm]
            assert numbers[:3] == [limit.burst, *limit.ticks]
            assert all(number.is_integer() and abs(number) <= 2 * MAX_EXACT for number in numbers)

    @pytest.mark.parametrize(
        ("one", "other", "is_same"),
        [
            ("60/m", "1/s", True),
            ("60/m using sliding-log", "1/s using sliding-log", False),
            ("1/s max-keys 5", "1/s outage open max-waiting 3", True),
            ("1/s", "1/s burst 2", False),
            ("5/d using fixed-window in UTC", "5/d using fixed-window in Europe/Berlin", False),
            ("adaptive 1..5/s", "adaptive 2..5/s", False),
            ("adaptive 1..5 at once", "adaptive 2..5 at once", False),
            ("adaptive 5..5 at once", "5 at once", False),
        ],
    )
    def test_limits_that_decide_the_same_have_one_identity(
        self, one: str, other: str, *, is_same: bool
    ) -> None:
        first, second = (self.pack(Limit.parse(text)).identity for text in (one, other))
        assert (first == second) == is_same
        later = self.pack(Limit.parse(one), now=self.NOW + 300 * DAY).identity
        assert first == later

    def test_every_algorithm_has_a_tag_of_its_own(self) -> None:
        assert set(definitions.TAGS) == {*CLAUSES, CONCURRENCY}
        assert set(definitions.TAGS.values()) == set(range(1, len(definitions.TAGS) + 1))


class TestCost:
    limit = Limit.parse("100/s burst 20")

    @pytest.mark.parametrize(
        ("cost", "amount"), [(1, 1_000_000), (2, 2_000_000), (20, 20_000_000), (0.5, 500_000)]
    )
    def test_up_to_the_burst_is_allowed(self, cost: float, amount: int) -> None:
        assert self.limit.check_cost(cost, "stripe") == amount

    @pytest.mark.parametrize("cost", [21, 20.000001, 10**400, 1e300])
    def test_above_the_burst_could_never_fit(self, cost: float) -> None:
        with pytest.raises(
            CostError, match=r"can never pass.*'stripe' \(100/s burst 20\).*allowed: at most 20$"
        ) as caught:
            self.limit.check_cost(cost, "stripe")
        assert errors.shown(cost) in str(caught.value)

    @pytest.mark.parametrize("cost", [0, -1, -0.5, True, False, "1", None, float("nan")])
    def test_must_be_a_number_above_zero(self, cost: Any) -> None:
        with pytest.raises(CostError, match=r"is not allowed.*at least a millionth$") as caught:
            self.limit.check_cost(cost, "stripe")
        assert repr(cost) in str(caught.value)

    def test_zero_is_for_a_peek(self) -> None:
        assert self.limit.check_cost(0, "stripe", allow_zero=True) == 0
        with pytest.raises(CostError, match="0 or more"):
            self.limit.check_cost(-1, "stripe", allow_zero=True)

    def test_of_slots_one_is_taken_whatever_the_cost(self) -> None:
        slots = Limit.parse("2 at once")
        assert slots.check_cost(1000, "github") == 1_000_000_000
        with pytest.raises(CostError, match="not allowed"):
            slots.check_cost(-1, "github")


class TestName:
    @pytest.mark.parametrize("name", ["stripe", "_", "A.b-c_9", "x" * 100])
    def test_is_returned(self, name: str) -> None:
        assert check_name(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "9a",
            "-a",
            ".a",
            "a b",
            "a:b",
            "a\n",
            "a{b}",
            "é",
            "x" * 101,
            None,
            5,
            b"a",
            ("a", 1),
            "a+2",  # this is how several limits of one name are told apart
        ],
    )
    def test_is_refused(self, name: Any) -> None:
        with pytest.raises(LimitSyntaxError, match="allowed") as caught:
            check_name(name)
        assert repr(name)[:90] in str(caught.value)


EXCEPTIONS = [
    Throttled("mail", "tenant-42", 1.25),
    Throttled("mail"),
    SentRequestsError("mail", "42", 90.0, 0.0, 60.0),
    WaitTooLongError("mail", None, 120.0, max_wait=60.0),
    WaitTooLongError("mail", "42", max_wait=60.0),
    QueueFullError("mail", "42"),
    QueueFullError("mail", "42", max_waiting=7),
    KeysFullError("mail", "42", 1.5, max_keys=100),
    KeysFullError("mail", "42", max_keys=1),
    LimitSyntaxError("'x' is not a rate"),
    RulesError("limits.toml", [(3, "'limit' is not a table"), (None, "the file is empty")]),
    OtherShardError("mail", "own", {"mail": "own", "api": "home"}),
]


def own_types() -> list[type]:
    """Return the types that the module of the errors defines."""
    types = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in types if kind.__module__ == errors.__name__]


class TestErrors:
    @pytest.mark.parametrize("error", EXCEPTIONS, ids=str)
    def test_survives_the_way_to_another_process(self, error: ThrottleError) -> None:
        by_json = type(error)(*json.loads(json.dumps(error.args)))  # as Celery's result backends do
        by_pickle = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line
        for again in (by_pickle, by_json, copy.copy(error)):
            assert type(again) is type(error)
            assert vars(again) == vars(error)
            assert again.args == error.args
            assert str(again) == str(error)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (
                Throttled("mail", "42", 1.25),
                "limit 'mail' (key '42') refused; this could pass in 1.25 s",
            ),
            (Throttled("mail"), "limit 'mail' refused; this can never pass"),
            (
                SentRequestsError("mail", "42", 90.0, 0.0, 60.0),
                (
                    "limit 'mail' (key '42') refused; this could pass in 90 s. The task has sent "
                    "requests already, so it does not start again: throttle_max_wait_in_place "
                    "allows a wait of 60 s. Raise that, or set throttle_restart=True on the task "
                    "if its requests may be sent twice"
                ),
            ),
            (
                WaitTooLongError("mail", None, 120.0, max_wait=60.0),
                "limit 'mail': this could pass in 120 s; throttle_max_wait allows 60 s",
            ),
            (QueueFullError("mail", "42"), "limit 'mail' (key '42'): its queue is full"),
            (
                QueueFullError("mail", max_waiting=7),
                "limit 'mail': its queue is full: max-waiting 7",
            ),
            (
                KeysFullError("mail", "42", 2.0, max_keys=9),
                "limit 'mail' (key '42'): no room for its key: max-keys 9; this could pass in 2 s",
            ),
        ],
    )
    def test_says_which_limit_and_when(self, error: Throttled, message: str) -> None:
        assert str(error) == message

    def test_derive_from_one_root(self) -> None:
        found = own_types()
        assert len(found) == 24
        assert all(issubclass(kind, ThrottleError) for kind in found)
        assert all(f" {kind.__name__}" in str(errors.__doc__) for kind in found)

    def test_can_be_imported_from_the_package(self) -> None:
        assert {kind.__name__ for kind in own_types()} <= set(celery_throttle.__all__)

    @pytest.mark.parametrize(
        ("kind", "builtin"),
        [
            (errors.LimitError, ValueError),
            (errors.KeyValueError, TypeError),
            (errors.UnknownLimitError, LookupError),
            (errors.UnknownFanOutError, LookupError),
        ],
    )
    def test_are_what_python_would_raise(self, kind: type, builtin: type) -> None:
        assert issubclass(kind, builtin)

    def test_a_broken_repr_does_not_hide_an_error(self) -> None:
        class Broken:
            def __repr__(self) -> str:
                raise RuntimeError

        assert errors.shown(Broken()) == "<Broken>"


def test_decision_is_true_when_allowed() -> None:
    decision = Decision(
        allowed=True, burst=5, remaining=1, retry_after=0.0, reset_after=0.4, limited_by=None
    )
    assert decision
    assert (decision.granted, decision.delay) == (0, 0.0)
    assert not decision._replace(allowed=False, retry_after=0.2, limited_by="stripe")
