"""Rate: a number of units per period, parsed from ``"5/10s"``. Numbers and time units of limits.

The scripts on the server calculate in doubles, which are exact for whole numbers up to 2**53. Their
products must not exceed ``MAX_EXACT``; the ranges of numbers here follow from that.

Functions that parse raise LimitSyntaxError for text of another form, and LimitValueError for a
number out of range. Their argument ``text`` is the text of the limit, for the message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import gcd, inf

from celery_throttle.errors import LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits.duration import MICROSECONDS, SPELLINGS, UNITS, in_longest_unit

MAX_UNITS = 10**9
MAX_SLOTS = 100_000
MAX_PERIOD_US = 366 * UNITS["d"]

_MAX_DIGITS = 30

_RATE = re.compile(r"([^/]*)/([^/a-z]*)([a-z]+)", re.ASCII | re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"-?\d+(?:_\d+)*", re.ASCII)

GRAMMAR = (
    "allowed: '<count>/<period>', such as '100/s', '5/10s', '1/500ms' or '5000/day', "
    "'<count> at once', 'adaptive <lowest>..<highest>/<period>' or "
    "'adaptive <lowest>..<highest> at once'; a rate may go on with "
    "'burst <count>' and 'using <algorithm>'"
)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate: ``count`` units in every ``period_us`` microseconds. Immutable.

    Attributes:
        count: Units in each period, 1 to 1e9.
        period_us: The period in microseconds: at least 1, at most 366 days.

    Raises:
        LimitValueError: A number is not whole, or out of range.

    Example:
        >>> Rate.parse("5/10s")
        Rate(count=5, period_us=10000000)
    """

    count: int
    period_us: int

    def __post_init__(self) -> None:
        check_whole("count", self.count, MAX_UNITS)
        check_whole("period in microseconds", self.period_us, MAX_PERIOD_US, "(366 days)")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse ``"<count>/<period>"``: ``"100/s"``, ``"5/10s"``, ``"1/500ms"``, ``"5000/day"``.

        Args:
            text: The text of the rate. Time units are us, ms, s, m, h, d, w and month, or words
                such as min, hours and day, in upper or lower case.

        Raises:
            LimitSyntaxError: ``text`` does not have that form.
            LimitValueError: A number is out of range.
        """
        match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise LimitSyntaxError(f"{shown(text)} is not a rate; {GRAMMAR}")
        count, multiple, unit = (part.strip() for part in match.groups())
        period = _period(multiple or "1", unit, text)
        whole_count = parse_whole("count", count, text)
        try:
            return cls(whole_count, period)
        except LimitValueError as error:
            raise LimitValueError(f"{shown(text)}: {error}") from None

    @property
    def interval(self) -> tuple[int, int]:
        """The emission interval in microseconds, a reduced fraction; ``(10000, 1)`` at 100/s."""
        divisor = gcd(self.period_us, self.count)
        return self.period_us // divisor, self.count // divisor

    @property
    def per_second(self) -> float:
        """The units in a second.

        :meta private:
        """
        return self.count * MICROSECONDS / self.period_us

    def __str__(self) -> str:
        multiple, symbol = in_longest_unit(self.period_us)
        return f"{self.count}/{'' if multiple == 1 else multiple}{symbol}"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """A number of slots: how many operations may be in progress at once, as in ``"10 at once"``.

    Attributes:
        slots: The number of slots, 1 to 100,000.

    Raises:
        LimitValueError: The number is not whole, or out of range.
    """

    slots: int

    def __post_init__(self) -> None:
        check_whole("number of slots", self.slots, MAX_SLOTS)

    def __str__(self) -> str:
        return f"{self.slots} at once"


def _period(multiple: str, unit: str, text: str) -> int:
    symbol = SPELLINGS.get(unit.lower())
    if symbol is None:
        units = ", ".join(reversed(UNITS))
        raise LimitSyntaxError(f"unknown unit {shown(unit)} in {shown(text)}; allowed: {units}")
    return parse_whole("period", multiple, text) * UNITS[symbol]


def parse_whole(name: str, number: str, text: str) -> int:
    """Parse a whole number; its ``name`` is for the message, too."""
    if not _WHOLE_NUMBER.fullmatch(number):
        raise LimitSyntaxError(
            f"{name} {shown(number)} in {shown(text)} is not a whole number; {GRAMMAR}"
        )
    if len(number) > _MAX_DIGITS:  # int() raises an error of its own for some thousand digits
        raise LimitValueError(f"{name} {shown(number)} is out of range; allowed: fewer digits")
    return int(number)


def check_whole(
    name: str, value: int, highest: float = inf, meaning: str = "", *, least: int = 1
) -> None:
    """Raise LimitValueError unless ``value`` is a whole number from ``least`` to ``highest``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= highest:
        numbers = f", {least} or more" if highest == inf else f" from {least} to {highest}"
        allowed = f"whole numbers{numbers} {meaning}".rstrip()
        raise LimitValueError(f"{name} {shown(value)} is out of range; allowed: {allowed}")
