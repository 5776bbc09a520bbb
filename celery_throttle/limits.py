"""Rate and Limit: what users write as ``"100/s burst 20 using token-bucket"``, as immutable values.

Two forms of text leave this module. ``str(limit)`` is for people, and parses back to an equal
limit. ``limit.definition()`` is for the scripts on the server, which need the emission interval
and not the rate; it reads back as a limit that behaves the same.

The scripts count in doubles, which are exact for whole numbers up to 2**53. What they multiply
stays within ``MAX_EXACT``, and that is what bounds the numbers here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd

from celery_throttle.errors import CostError, LimitSyntaxError, LimitValueError, shown

ALGORITHMS = ("gcra", "token-bucket")

# Each unit under the symbol that str() writes, from the longest to the shortest, in microseconds.
_UNITS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_WORDS = {
    "w": "week weeks",
    "d": "day days",
    "h": "hour hours",
    "m": "min minute minutes",
    "s": "sec second seconds",
}
_SPELLINGS = {
    spelling: symbol for symbol in _UNITS for spelling in (symbol, *_WORDS.get(symbol, "").split())
}

MAX_UNITS = 10**9
MAX_PERIOD_US = 366 * _UNITS["d"]
MAX_EXACT = 2**52
_MAX_DIGITS = 30

_RATE = re.compile(r"([^/]*)/([^/a-z]*)([a-z]*)", re.ASCII | re.IGNORECASE)
_CLAUSE = re.compile(r"\s(burst|using)\b", re.ASCII | re.IGNORECASE)
_WHOLE_NUMBER = re.compile(r"-?\d+(?:_\d+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,99}", re.ASCII)
_DEFINITION = re.compile(r"(\S+) ([1-9]\d{0,19}) ([1-9]\d{0,19}) ([1-9]\d{0,19})", re.ASCII)

_RATE_GRAMMAR = (
    "allowed: '<count>/<period>', such as '100/s', '5/10s', '1/500ms' or '5000/day'; "
    "a limit may go on with 'burst <count>' and 'using <algorithm>'"
)


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` units in every ``period_us`` microseconds.

    Raises:
        LimitValueError: if ``count`` is not from 1 to a thousand million, or the period not from 1
            microsecond to 366 days.
    """

    count: int
    period_us: int

    def __post_init__(self) -> None:
        _check_whole("count", self.count, MAX_UNITS)
        _check_whole("period in microseconds", self.period_us, MAX_PERIOD_US, "(366 days)")

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read ``"<count>/<period>"``: ``"100/s"``, ``"5/10s"``, ``"1/500ms"``, ``"5000/day"``.

        Units are us, ms, s, m, h, d and w, or words such as min, hours, day; case does not matter.

        Raises:
            LimitSyntaxError: if ``text`` is not of that form.
            LimitValueError: if a number is out of range.
        """
        match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise LimitSyntaxError(f"{shown(text)} is not a rate; {_RATE_GRAMMAR}")
        count, multiple, unit = (part.strip() for part in match.groups())
        symbol = _SPELLINGS.get(unit.lower())
        if symbol is None:
            units = ", ".join(reversed(_UNITS))
            raise LimitSyntaxError(f"unknown unit {shown(unit)} in {shown(text)}; allowed: {units}")
        period = _parse_whole("period", multiple or "1", text) * _UNITS[symbol]
        with _naming(text):
            return cls(_parse_whole("count", count, text), period)

    @property
    def interval(self) -> tuple[int, int]:
        """The emission interval in microseconds, as a reduced fraction: ``(10000, 1)`` at 100/s."""
        divisor = gcd(self.period_us, self.count)
        return self.period_us // divisor, self.count // divisor

    def __str__(self) -> str:
        symbol = next(symbol for symbol, us in _UNITS.items() if self.period_us % us == 0)
        multiple = self.period_us // _UNITS[symbol]
        return f"{self.count}/{'' if multiple == 1 else multiple}{symbol}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate, the burst (capacity) that may pass at once, and the algorithm that counts.

    Burst is 1 unless given: units pass evenly spaced, one every emission interval.

    Raises:
        LimitValueError: if the algorithm is unknown, or the burst is not from 1 to a thousand
            million, or too large to be counted exactly at this rate.
    """

    rate: Rate
    burst: int = 1
    algorithm: str = "gcra"

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Rate):
            raise LimitValueError(f"{shown(self.rate)} is no Rate; Limit.parse() reads text")
        if self.algorithm not in ALGORITHMS:
            allowed = ", ".join(ALGORITHMS)
            raise LimitValueError(f"unknown algorithm {shown(self.algorithm)}; allowed: {allowed}")
        _check_whole("burst", self.burst, MAX_UNITS)
        numerator, _ = self.rate.interval
        if self.burst * numerator > MAX_EXACT:
            raise LimitValueError(
                f"burst {self.burst} is too large to be counted exactly at {self.rate}; "
                f"allowed: at most {MAX_EXACT // numerator}, or more at a rate with a rounder count"
            )

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Read a rate and its clauses: ``"100/s burst 20 using token-bucket"``.

        The clauses may come in either order, each at most once.

        Raises:
            LimitSyntaxError: if ``text`` is not of that form.
            LimitValueError: if a number is out of range, or the algorithm is unknown.
        """
        if not isinstance(text, str):
            raise LimitSyntaxError(f"{shown(text)} is not a limit; {_RATE_GRAMMAR}")
        rate, *rest = (part.strip() for part in _CLAUSE.split(text.strip()))
        keywords = [keyword.lower() for keyword in rest[::2]]
        clauses = dict(zip(keywords, rest[1::2], strict=True))
        if len(clauses) < len(keywords):
            raise LimitSyntaxError(f"a clause is given twice in {shown(text)}; allowed: once each")
        parsed = Rate.parse(rate)
        burst = _parse_whole("burst", clauses.get("burst", "1"), text)
        with _naming(text):
            return cls(parsed, burst, clauses.get("using", "gcra").lower())

    @classmethod
    def of(cls, limit: str | Limit) -> Limit:
        """Return ``limit`` itself, or the limit its text means. Raises as ``parse`` does."""
        return limit if isinstance(limit, Limit) else cls.parse(limit)

    @classmethod
    def from_definition(cls, text: str) -> Limit:
        """Read what ``definition`` wrote.

        The limit behaves as the one that was written; its rate is the one most natural to read
        among those with the same interval (``"5/10s"`` comes back as ``"30/m"``). Raises as
        ``parse`` does.
        """
        match = _DEFINITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise LimitSyntaxError(
                f"{shown(text)} is not a limit definition; allowed: '<algorithm> "
                "<interval numerator> <interval denominator> <burst>', such as 'gcra 10000 1 20'"
            )
        algorithm, *numbers = match.groups()
        numerator, denominator, burst = map(int, numbers)
        with _naming(text):
            return cls(_rate_with_interval(numerator, denominator), burst, algorithm)

    def definition(self) -> str:
        """Return the text the scripts read: ``"gcra 10000 1 20"`` for ``"100/s burst 20"``.

        That is: algorithm, emission interval in microseconds as numerator and denominator, burst.
        """
        numerator, denominator = self.rate.interval
        return f"{self.algorithm} {numerator} {denominator} {self.burst}"

    def check_cost(self, cost: int, name: str, *, allow_zero: bool = False) -> None:
        """Raise CostError unless ``cost`` is a whole number from 1 (or 0) to the burst.

        ``name`` is the name of this limit, for the message. Zero is for a peek.
        """
        lowest = 0 if allow_zero else 1
        if _is_whole(cost) and lowest <= cost <= self.burst:
            return
        never = " can never fit" if _is_whole(cost) and cost > self.burst else " is not allowed"
        raise CostError(
            f"cost {shown(cost)}{never} in limit {shown(name)} ({self}); "
            f"allowed: whole numbers from {lowest} to its burst, {self.burst}"
        )

    def __str__(self) -> str:
        burst = "" if self.burst == 1 else f" burst {self.burst}"
        using = "" if self.algorithm == "gcra" else f" using {self.algorithm}"
        return f"{self.rate}{burst}{using}"


def check_name(name: str) -> str:
    """Return ``name`` if a limit can have it, and raise LimitSyntaxError if not."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise LimitSyntaxError(
        f"{shown(name)} cannot name a limit; allowed: up to 100 ASCII letters, digits and "
        "'_', '.', '-', of which the first is a letter or '_'"
    )


def _rate_with_interval(numerator: int, denominator: int) -> Rate:
    # People speak of units per second, minute, hour, day or week: the first of these that the
    # interval divides makes the rate. What fits none keeps its odd period.
    for symbol in ("s", "m", "h", "d", "w"):
        times, rest = divmod(_UNITS[symbol], numerator)
        if not rest and times * denominator <= MAX_UNITS:
            return Rate(times * denominator, _UNITS[symbol])
    return Rate(denominator, numerator)


def _parse_whole(what: str, number: str, text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(number):
        raise LimitSyntaxError(
            f"{what} {shown(number)} in {shown(text)} is not a whole number; {_RATE_GRAMMAR}"
        )
    if len(number) > _MAX_DIGITS:  # int() refuses some thousand digits with an error of its own
        raise LimitValueError(f"{what} {shown(number)} is out of range; allowed: fewer digits")
    return int(number)


def _check_whole(what: str, value: int, highest: int, meaning: str = "") -> None:
    if not _is_whole(value) or not 1 <= value <= highest:
        allowed = f"whole numbers from 1 to {highest} {meaning}".rstrip()
        raise LimitValueError(f"{what} {shown(value)} is out of range; allowed: {allowed}")


@contextmanager
def _naming(text: str) -> Iterator[None]:
    """Put the text that was read in front of what is wrong with its numbers."""
    try:
        yield
    except LimitValueError as error:
        raise LimitValueError(f"{shown(text)}: {error}") from None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
