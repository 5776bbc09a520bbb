"""Fractional costs: counted in millionths, without rounding in either direction."""

from __future__ import annotations

from fractions import Fraction

import pytest

from celery_throttle.limits.cost import MILLION, to_millionths
from celery_throttle.limits.grammar import ADAPTIVE
from celery_throttle.limits.limit import Limit
from celery_throttle.operations.plan import Plan
from tests.algorithms.limits import METERS, RATES
from tests.algorithms.properties import Sides
from tests.algorithms.sides import Side
from tests.algorithms.traces import Step


def of_three(algorithm: str, period: str = "s") -> Limit:
    if algorithm == ADAPTIVE:
        return Limit.parse(f"adaptive 1..3/{period} burst 3")
    burst = " burst 3" if algorithm in METERS else ""
    return Limit.parse(f"3/{period}{burst} using {algorithm}")


EVERY = [of_three(algorithm) for algorithm in RATES]


def test_thirds_leave_what_they_were_rounded_by(sides: Sides) -> None:
    def take(side: Side, _trace: list[Step]) -> Plan[None]:
        for _ in range(9):
            assert (yield from side.acquire(to_millionths(Fraction(1, 3))))
        # 333,333 millionths each: three of them are left.
        assert not (yield from side.peek(4))
        assert (yield from side.acquire(3))
        assert not (yield from side.acquire(1))

    sides.show(take, EVERY, [])


def test_the_smallest_cost_counts(sides: Sides) -> None:
    def take(side: Side, _trace: list[Step]) -> Plan[None]:
        assert (yield from side.acquire(1))
        assert not (yield from side.acquire(3 * MILLION))
        assert (yield from side.acquire(3 * MILLION - 1))
        assert not (yield from side.acquire(1))

    # An interval that is no whole number of ticks a millionth: a cost is rounded up to one.
    days = [of_three(algorithm, "d") for algorithm in METERS]
    sides.show(take, [*EVERY, *days], [])


@pytest.mark.parametrize("most", [2_999_999, 3_000_000, 3_000_001, 10**15 - 1, 10**15 + 1])
def test_a_fraction_gets_fractions_and_a_whole_number_whole_units(sides: Sides, most: int) -> None:
    def take(side: Side, _trace: list[Step]) -> Plan[None]:
        yield from side.acquire(250_001)
        decision = yield from side.acquire_up_to(most)
        granted = round(Fraction(decision.granted) * MILLION)
        assert granted == (2_000_000 if most % MILLION == 0 else 2_749_999)

    sides.show(take, EVERY, [])


def test_no_most_is_too_long_to_be_asked_for(sides: Sides) -> None:
    """A fraction above the largest cost that can be sent stays a fraction."""

    def take(side: Side, _trace: list[Step]) -> Plan[None]:
        yield from side.acquire(250_001)
        decision = yield from side.acquire_up_to(2 * 10**15 + 1)
        assert round(Fraction(decision.granted) * MILLION) == 2_749_999

    sides.show(take, EVERY, [])


@pytest.mark.parametrize("period", [400_000_000_001, 4_499_999_999_999, 2_251_799_813_685])
def test_nothing_is_rounded_where_a_unit_is_longest(sides: Sides, period: int) -> None:
    """More than 2**51 ticks per unit, so that a sum of two is not exact in a double."""
    parts = range(1, MILLION, 9973)

    def take(side: Side, _trace: list[Step]) -> Plan[None]:
        for part in parts:
            yield from side.acquire(part)
            yield from side.acquire_up_to(MILLION - 1)
            yield from side.peek(1)
            side.clock.now += 2 * period

    sides.show(take, [Limit.parse(f"1/{period}us using {one}") for one in METERS], [])
