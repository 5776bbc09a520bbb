"""Cost: the number of units that a request takes, counted in millionths of a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import isfinite
from typing import Any

from celery_throttle.errors import CostError, shown

MILLION = 1_000_000
_MAX_DIGITS = 30

# Above any limit. Stands for larger costs, whose exact value might fill the memory, or exceed a
# double.
_ABOVE_ANY_LIMIT = MILLION**5

# The thread's own context may round to a few digits.
_EXACT = Context(prec=3 * _MAX_DIGITS)

_ARGUMENT = re.compile(r"(?P<length>len\()?\{(?P<name>\w+)\}(?(length)\))")

#: A number of units. Fractions are rounded to a millionth of a unit.
Cost = int | float | Decimal | Fraction


def to_millionths(cost: Cost, *, allow_zero: bool = False) -> int:
    """Convert a cost to millionths of a unit, or raise CostError: ``1_500_000`` for 1.5."""
    # The usual case first. The type of a bool is not int.
    amount = min(cost * MILLION, _ABOVE_ANY_LIMIT) if type(cost) is int else _round(cost)
    if amount < (0 if allow_zero else 1):
        least = "0 or more" if allow_zero else "at least a millionth"
        raise CostError(f"cost {shown(cost)} is not allowed; allowed: a number of units, {least}")
    return amount


def to_units(amount: int) -> int | float:
    """Convert millionths of a unit to units: an int if they are whole."""
    units, rest = divmod(amount, MILLION)
    return amount / MILLION if rest else units


def _round(cost: Cost) -> int:
    """Round a cost to millionths; -1 for a cost that is not a number, or below 0."""
    if isinstance(cost, bool) or not isinstance(cost, (int, float, Decimal, Fraction)):
        return -1
    if isinstance(cost, float):
        # By its decimal text, so that 0.1 is a tenth.
        cost = Decimal(repr(float(cost))) if isfinite(cost) else Decimal("NaN")
    if (isinstance(cost, Decimal) and not cost.is_finite()) or cost < 0:
        return -1
    if isinstance(cost, Decimal):
        if cost and cost.adjusted() > _MAX_DIGITS:
            return _ABOVE_ANY_LIMIT
        return int(_EXACT.multiply(cost, MILLION).to_integral_value(ROUND_HALF_EVEN))
    return min(round(Fraction(cost) * MILLION), _ABOVE_ANY_LIMIT)


@dataclass(frozen=True, slots=True)
class ArgumentCost:
    """A cost that is the value of an argument, or its length."""

    name: str
    is_length: bool

    @classmethod
    def parse(cls, written: object) -> ArgumentCost | None:
        """Parse ``"{tokens}"`` or ``"len({items})"``; None for anything else."""
        match = _ARGUMENT.fullmatch(written) if isinstance(written, str) else None
        if match is None or not match["name"].isidentifier():
            return None
        return cls(match["name"], is_length=bool(match["length"]))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The name of the argument."""
        return (self.name,)

    @property
    def optional(self) -> Mapping[str, Any]:
        """No argument may be missing."""
        return {}

    def amount(self, value: Any) -> int:
        """Return the cost in millionths of a unit; CostError if the value is none."""
        if not self.is_length:
            return to_millionths(value)
        try:
            return to_millionths(len(value))
        except TypeError:
            raise CostError(
                f"the argument {self.name!r} is {shown(value)}, which has no length; allowed with "
                f"'len({{{self.name}}})': such as a list"
            ) from None
