"""Cost: how many units a request takes. Whole or not, it is counted in millionths of a unit."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import isfinite

from celery_throttle.errors import CostError, shown

MILLION = 1_000_000
_MAX_DIGITS = 30

# Above any limit, whatever else is counted. An int of what was given might fill the memory.
_TOO_MUCH = MILLION**5

# Not the one of the thread, which may round to a few digits.
_EXACT = Context(prec=3 * _MAX_DIGITS)

#: Units of cost. A fraction of a unit is rounded to a millionth.
Cost = int | float | Decimal | Fraction


def millionths(cost: Cost, *, allow_zero: bool = False) -> int:
    """A cost in millionths of a unit: ``1_500_000`` for 1.5.

    Raises:
        CostError: it is no number above 0 (or 0, where ``allow_zero``).
    """
    # Most are an int, and a bool is none.
    amount = cost * MILLION if type(cost) is int else _rounded(cost)
    if amount < (0 if allow_zero else 1):
        raise _wrong(cost, allow_zero=allow_zero)
    return amount


def in_units(amount: int) -> int | float:
    """Millionths of a unit as units: a whole number if they are."""
    units, rest = divmod(amount, MILLION)
    return amount / MILLION if rest else units


def _rounded(cost: Cost) -> int:
    """In millionths; -1 for what is no number or below 0."""
    if isinstance(cost, bool) or not isinstance(cost, (int, float, Decimal, Fraction)):
        return -1
    if isinstance(cost, float):
        # As it is written: 0.1 is a tenth.
        cost = Decimal(repr(float(cost))) if isfinite(cost) else Decimal("NaN")
    if (isinstance(cost, Decimal) and not cost.is_finite()) or cost < 0:
        return -1
    if isinstance(cost, Decimal):
        if cost and cost.adjusted() > _MAX_DIGITS:
            return _TOO_MUCH
        return int(_EXACT.multiply(cost, MILLION).to_integral_value(ROUND_HALF_EVEN))
    return min(round(Fraction(cost) * MILLION), _TOO_MUCH)


def _wrong(cost: object, *, allow_zero: bool = False) -> CostError:
    least = "0 or more" if allow_zero else "at least a millionth"
    return CostError(f"cost {shown(cost)} is not allowed: a cost is a number of units, {least}")
