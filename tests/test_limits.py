"""Rates and limits: what they read, what they refuse, and what they write. Errors and Decision."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle import errors
from celery_throttle.decision import Decision
from celery_throttle.errors import (
    CostError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    Throttled,
    ThrottleError,
    WaitTooLongError,
)
from celery_throttle.limits import (
    ALGORITHMS,
    MAX_EXACT,
    MAX_PERIOD_US,
    MAX_UNITS,
    Limit,
    Rate,
    check_name,
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

rates = st.builds(Rate, st.integers(1, MAX_UNITS), st.integers(1, MAX_PERIOD_US)) | st.builds(
    lambda count, multiple, unit: Rate(count, multiple * unit),
    st.integers(1, 10_000),
    st.integers(1, 52),
    st.sampled_from([1, 1_000, SECOND, MINUTE, HOUR, DAY, 7 * DAY]),
)


@st.composite
def limits(draw: st.DrawFn) -> Limit:
    rate = draw(rates)
    highest = min(MAX_UNITS, MAX_EXACT // rate.interval[0])
    return Limit(rate, draw(st.integers(1, highest)), draw(st.sampled_from(ALGORITHMS)))


def assert_names(error: BaseException, offending: object) -> None:
    assert repr(offending) in str(error)
    assert "allowed" in str(error)


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
            ("100/", ""),
            ("100/5", ""),
            ("100/fortnight", "fortnight"),
            ("100/5month", "month"),
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
        ["0/s", "-5/s", "1/0s", "1/-3s", "1000000001/s", "1/367d", "1/53w", "1/31622400001ms"],
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
            (" 5 / 10 sec  BURST\t1_000\nUsing  GCRA ", Limit(Rate(5, 10 * SECOND), 1000)),
        ],
    )
    def test_reads(self, text: str, limit: Limit) -> None:
        assert Limit.parse(text) == Limit.of(text) == limit

    def test_burst_is_one_and_the_algorithm_gcra_unless_given(self) -> None:
        limit = Limit.parse("100/s")
        assert (limit.burst, limit.algorithm) == (1, "gcra")

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
            ("100/s using gcra twice", "gcra twice"),
            ("1/d burst 52125", "1/d burst 52125"),
        ],
    )
    def test_refuses_values_out_of_range(self, text: str, offending: str) -> None:
        with pytest.raises(LimitValueError) as caught:
            Limit.parse(text)
        assert_names(caught.value, offending)

    def test_an_unknown_algorithm_is_told_the_known_ones(self) -> None:
        with pytest.raises(LimitValueError, match="allowed: gcra, token-bucket"):
            Limit(Rate(1, SECOND), 1, "sliding")

    @pytest.mark.parametrize(
        ("rate", "highest"), [("1/d", 52_124), ("5000/d", 260_624_978), ("999983/d", 52_124)]
    )
    def test_burst_is_bounded_by_what_doubles_count_exactly(self, rate: str, highest: int) -> None:
        assert Limit(Rate.parse(rate), highest).burst == highest
        with pytest.raises(LimitValueError, match=f"at most {highest},"):
            Limit(Rate.parse(rate), highest + 1)

    @pytest.mark.parametrize(
        "burst", [0, -1, 1.5, True, "1", None, 10**10, pytest.param(10**5000, id="5001 digits")]
    )
    def test_refuses_such_bursts(self, burst: Any) -> None:
        with pytest.raises(LimitValueError, match=r"burst .* allowed: whole numbers from 1 to"):
            Limit(Rate(1, SECOND), burst)

    def test_text_is_no_rate(self) -> None:
        rate: Any = "100/s"
        with pytest.raises(LimitValueError, match="'100/s' is no Rate"):
            Limit(rate)

    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("100/sec burst 1 using gcra", "100/s"),
            ("100/s using token-bucket burst 20", "100/s burst 20 using token-bucket"),
            ("60/60s burst 2", "60/m burst 2"),
        ],
    )
    def test_writes_only_what_is_not_the_default(self, text: str, canonical: str) -> None:
        assert str(Limit.parse(text)) == canonical

    @given(limits())
    def test_text_reads_back(self, limit: Limit) -> None:
        assert Limit.parse(str(limit)) == limit

    @given(st.text() | st.from_regex(r"\A\d{1,12}/\d{0,3}[smhd]( (burst|using) [\w-]+){0,3}\Z"))
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


class TestDefinition:
    @pytest.mark.parametrize(
        ("text", "definition"),
        [
            ("100/s burst 20", "gcra 10000 1 20"),
            ("100/s burst 20 using token-bucket", "token-bucket 10000 1 20"),
            ("3/s", "gcra 1000000 3 1"),
            ("5/10s", "gcra 2000000 1 1"),
        ],
    )
    def test_is_what_scripts_read(self, text: str, definition: str) -> None:
        assert Limit.parse(text).definition() == definition

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("100/s burst 20", "100/s burst 20"),
            ("100/s using token-bucket", "100/s using token-bucket"),
            ("5000/d", "5000/d"),
            ("100/m", "100/m"),
            ("5000/h", "5000/h"),
            ("5/10s", "30/m"),
            ("3/s", "3/s"),
            ("1/ms", "1000/s"),
            ("1000000000/us", "1000000000/us"),
            ("1/7us", "1/7us"),
            ("1/30d", "1/30d"),
            ("11/7s", "950400/w"),
        ],
    )
    def test_reads_back_as_a_natural_rate(self, written: str, read: str) -> None:
        assert str(Limit.from_definition(Limit.parse(written).definition())) == read

    @given(limits())
    def test_reads_back_with_the_same_behaviour(self, limit: Limit) -> None:
        again = Limit.from_definition(limit.definition())
        assert again.rate.interval == limit.rate.interval
        assert (again.burst, again.algorithm) == (limit.burst, limit.algorithm)
        assert again.definition() == limit.definition()

    def test_the_fraction_need_not_be_reduced(self) -> None:
        assert Limit.from_definition("gcra 20000 2 20") == Limit.parse("100/s burst 20")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "gcra",
            "gcra 10000 1",
            "gcra 10000 1 20 1",
            "gcra  10000 1 20",
            "gcra 10000 1 20\n",
            "gcra 0 1 20",
            "gcra 10000 0 20",
            "gcra 10000 1 0",
            "gcra -1 1 20",
            "gcra 1e4 1 20",
            "100/s burst 20",
            b"gcra 10000 1 20",
            None,
        ],
    )
    def test_refuses_other_text(self, text: Any) -> None:
        with pytest.raises(LimitSyntaxError) as caught:
            Limit.from_definition(text)
        assert_names(caught.value, text)

    @pytest.mark.parametrize(
        ("text", "offending"),
        [
            ("leaky 10000 1 20", "leaky"),
            ("gcra 31622400000001 1 1", "gcra 31622400000001 1 1"),
            ("gcra 10000 1000000001 1", "gcra 10000 1000000001 1"),
            ("gcra 10000 1 1000000001", "gcra 10000 1 1000000001"),
            ("gcra 86400000000 1 52125", "gcra 86400000000 1 52125"),
        ],
    )
    def test_refuses_values_out_of_range(self, text: str, offending: str) -> None:
        with pytest.raises(LimitValueError) as caught:
            Limit.from_definition(text)
        assert_names(caught.value, offending)


class TestCost:
    limit = Limit.parse("100/s burst 20")

    @pytest.mark.parametrize("cost", [1, 2, 20])
    def test_up_to_the_burst_is_allowed(self, cost: int) -> None:
        self.limit.check_cost(cost, "stripe")

    def test_above_the_burst_could_never_fit(self) -> None:
        with pytest.raises(CostError, match=r"cost 21 can never fit.*'stripe'.*from 1 to .* 20"):
            self.limit.check_cost(21, "stripe")

    @pytest.mark.parametrize("cost", [0, -1, 1.0, 0.5, True, False, "1", None, float("nan")])
    def test_must_be_a_positive_whole_number(self, cost: Any) -> None:
        with pytest.raises(CostError, match=r"is not allowed.*'stripe'") as caught:
            self.limit.check_cost(cost, "stripe")
        assert_names(caught.value, cost)

    def test_zero_is_for_a_peek(self) -> None:
        self.limit.check_cost(0, "stripe", allow_zero=True)
        with pytest.raises(CostError, match="from 0"):
            self.limit.check_cost(-1, "stripe", allow_zero=True)


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
        ],
    )
    def test_is_refused(self, name: Any) -> None:
        with pytest.raises(LimitSyntaxError, match="allowed") as caught:
            check_name(name)
        assert repr(name)[:90] in str(caught.value)


EXCEPTIONS = [
    Throttled("mail", "tenant-42", 1.25),
    Throttled("mail"),
    WaitTooLongError("mail", None, 120.0, 60.0),
    WaitTooLongError("mail", "42", None, 60.0),
    LimitSyntaxError("'x' is not a rate"),
]


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
                WaitTooLongError("mail", None, 120.0, 60.0),
                "limit 'mail': this could pass in 120 s; throttle_max_wait allows 60 s",
            ),
        ],
    )
    def test_says_which_limit_and_when(self, error: Throttled, message: str) -> None:
        assert str(error) == message

    def test_derive_from_one_root(self) -> None:
        found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
        assert len(found) == 13
        assert all(issubclass(kind, ThrottleError) for kind in found)
        assert all(f" {kind.__name__}" in str(errors.__doc__) for kind in found)

    @pytest.mark.parametrize(
        ("kind", "builtin"),
        [
            (errors.LimitError, ValueError),
            (errors.KeyValueError, TypeError),
            (errors.UnknownLimitError, LookupError),
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
        allowed=True, limit=5, remaining=1, retry_after=0.0, reset_after=0.4, bound_by=None
    )
    assert decision
    assert not replace(decision, allowed=False, retry_after=0.2, bound_by="stripe")
