"""Costs: allowed numbers, and their millionths of a unit."""

from __future__ import annotations

import decimal
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.errors import CostError, LimitError
from celery_throttle.limits.cost import MILLION, to_millionths, to_units
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.rate import MAX_UNITS
from celery_throttle.limits.requirement import Requirement, make_requirement, parse_costs
from celery_throttle.store.script import pack_doubles

HIGHEST = MAX_UNITS * MILLION  # no limit admits more


class Size(IntEnum):
    LARGE = 3


class Seconds(float):
    """A float with its own repr, like numpy's float64."""

    def __repr__(self) -> str:
        return f"Seconds({float(self)})"


@pytest.mark.parametrize(
    ("cost", "amount"),
    [
        (1, 1_000_000),
        (10**9, 10**15),
        (Size.LARGE, 3_000_000),
        (1.0, 1_000_000),
        (1.5, 1_500_000),
        (0.1, 100_000),  # a tenth, not what a double makes of it
        (0.1 + 0.2, 300_000),
        (1e-6, 1),
        (5e-7 + 1e-9, 1),
        (1e9, 10**15),
        (123.456789, 123_456_789),
        (Seconds(2.5), 2_500_000),
        (Decimal("1.5"), 1_500_000),
        (Decimal("0.000001"), 1),
        (Decimal("1E+3"), 10**9),
        (Decimal("0.0000015"), 2),  # halves go to the even one
        (Decimal("0.0000025"), 2),
        (Decimal("1." + "0" * 5000), 1_000_000),
        (Fraction(1, 3), 333_333),
        (Fraction(2, 3), 666_667),
        (Fraction(1, 1_000_000), 1),
        (Fraction(7), 7_000_000),
    ],
)
def test_is_counted_in_millionths(cost: Any, amount: int) -> None:
    assert to_millionths(cost) == to_millionths(cost, allow_zero=True) == amount


@pytest.mark.parametrize(
    "cost",
    [
        True,
        False,
        None,
        "1",
        "",
        b"1",
        [1],
        {},
        1j,
        object(),
        float("nan"),
        float("inf"),
        float("-inf"),
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("-Infinity"),
        -1,
        -0.5,
        -1e-6,
        -1e300,
        -1e-9,
        Decimal(-1),
        Decimal("-1E+999999"),
        Fraction(-1, 3),
        -(10**400),
        Fraction(-(10**400), 3),
    ],
    ids=lambda cost: repr(cost)[:20],
)
def test_what_can_be_no_cost(cost: Any) -> None:
    for allow_zero, allowed in ((False, "at least a millionth"), (True, "0 or more")):
        with pytest.raises(CostError, match=f"{allowed}$") as caught:
            to_millionths(cost, allow_zero=allow_zero)
        assert f"cost {cost!r}"[:80] in str(caught.value)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "cost",
    [
        0,
        0.0,
        -0.0,
        4e-7,
        5e-324,
        Decimal(0),
        Decimal("-0"),
        Decimal("0E+999999"),
        Decimal("1E-999999"),
        Fraction(0),
        Fraction(1, 2_000_000),
        Fraction(1, 10**400),
    ],
    ids=lambda cost: repr(cost)[:20],
)
def test_nothing_is_for_a_peek(cost: Any) -> None:
    """Less than half a millionth rounds to 0."""
    assert to_millionths(cost, allow_zero=True) == 0
    with pytest.raises(CostError, match="at least a millionth") as caught:
        to_millionths(cost)
    assert f"cost {cost!r}"[:80] in str(caught.value)


@pytest.mark.parametrize(
    "cost",
    [
        pytest.param(10**400, id="int"),
        pytest.param(10**5000, id="long int"),
        pytest.param(1e300, id="float"),
        pytest.param(Decimal("1E+999999"), id="exponent"),
        pytest.param(Decimal("9" * 5000), id="digits"),
        pytest.param(Fraction(10**400, 3), id="third"),
        pytest.param(Fraction(2 * 10**400 + 1, 2), id="half"),
    ],
)
def test_a_huge_one_is_above_any_limit(cost: Any) -> None:
    """Without an int of a million digits, and without an error of Python."""
    amount = to_millionths(cost)
    assert len(pack_doubles(amount)) == 8
    assert amount > HIGHEST
    assert to_units(amount) > MAX_UNITS


def test_the_context_of_the_thread_does_not_round_it() -> None:
    with decimal.localcontext() as context:
        context.prec = 2
        context.traps[decimal.Inexact] = True
        assert to_millionths(Decimal("123456.789012")) == 123_456_789_012
        assert to_millionths(1.0000004) == 1_000_000


@given(st.integers(1, HIGHEST))
def test_millionths_are_kept_by_every_type(amount: int) -> None:
    exact = Fraction(amount, MILLION)
    assert to_millionths(exact) == amount
    assert to_millionths(Decimal(amount).scaleb(-6)) == amount
    assert to_millionths(amount / MILLION) == amount
    assert to_millionths(to_units(amount)) == amount


@given(st.fractions(0, MAX_UNITS) | st.floats(0, MAX_UNITS) | st.decimals(0, MAX_UNITS))
def test_it_is_rounded_to_the_nearest_millionth(cost: Any) -> None:
    amount = to_millionths(cost, allow_zero=True)
    # A float is the decimal number it is written as.
    exact = Fraction(repr(cost)) if isinstance(cost, float) else Fraction(cost)
    assert abs(amount - exact * MILLION) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("amount", "units"),
    [(0, 0), (1, 1e-6), (1_000_000, 1), (1_500_000, 1.5), (10**15, 10**9)],
)
def test_units_are_whole_if_they_can_be(amount: int, units: float) -> None:
    assert to_units(amount) == units
    assert type(to_units(amount)) is type(units)


# Of several limits.

API, MAIL = LimitRef("api", None), LimitRef("mail", "a")


def test_one_cost_is_that_of_every_limit() -> None:
    assert parse_costs([API, MAIL], 1.5) == (1_500_000, 1_500_000)
    requirement = make_requirement([API, MAIL], 2)
    assert requirement == Requirement((API, MAIL), (2_000_000, 2_000_000))
    assert hash(requirement) == hash(
        make_requirement([API, MAIL], {"api": 2.0, "mail": Decimal(2)})
    )


def test_costs_may_be_told_by_the_name_of_the_limit() -> None:
    assert parse_costs([API, MAIL], {"mail": 0.5}) == (1_000_000, 500_000)
    assert parse_costs([API, MAIL], {"mail": 0, "api": Decimal(2)}, least=0) == (2_000_000, 0)
    assert parse_costs([API, MAIL], {}) == (1_000_000, 1_000_000)
    other = MAIL._replace(key="b")
    assert parse_costs([MAIL, other], {"mail": 3}) == (3_000_000, 3_000_000)


@pytest.mark.parametrize("name", ["nope", "mail:a", "", None, 5])
def test_a_cost_for_a_limit_that_is_not_named(name: Any) -> None:
    with pytest.raises(LimitError, match=r"allowed: api, mail$") as caught:
        parse_costs([API, MAIL], {name: 1})
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("cost", [0, -1, True, "1", None, float("nan"), {}])
def test_a_cost_by_name_that_is_no_cost(cost: Any) -> None:
    with pytest.raises(CostError, match=f"cost {cost!r} "):
        parse_costs([API, MAIL], {"mail": cost})
