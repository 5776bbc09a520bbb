"""Limit: the immutable value of ``"100/s burst 20 using token-bucket"``.

``str(limit)`` is for people; it parses to an equal limit. :mod:`celery_throttle.store.definitions`
packs limits for the scripts on the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from celery_throttle.errors import CostError, LimitError, LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits import grammar
from celery_throttle.limits.calendar import CALENDAR_PERIODS, Calendar
from celery_throttle.limits.cost import MILLION, Cost, to_millionths
from celery_throttle.limits.duration import MAX_EXACT, UNITS, in_longest_unit
from celery_throttle.limits.grammar import (
    ADAPTIVE,
    ALGORITHMS,
    CLAUSES,
    CONCURRENCY,
    FIRST_REQUEST,
    OUTAGE_MODES,
    SLOT_CLAUSES,
    suggest,
    wrong_clause_error,
)
from celery_throttle.limits.rate import (
    GRAMMAR,
    MAX_UNITS,
    Concurrency,
    Rate,
    check_whole,
)

#: Microseconds by which a start is booked ahead at most. If a state was written further in the
#: future, the clock has been set back since.
MAX_BOOKING_US = 20_000

#: The longest lease of a slot, or of a worker's claims.
MAX_LEASE_SECONDS = 3600

#: An adaptive limit's highest rate divided by its lowest is at most this: amounts stay exact at
#: every rate between.
MAX_ADAPTIVE_RATIO = 1000

MAX_PARTS = 100
MAX_KEYS = MAX_WAITING = 10**9


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit: a rate and its algorithm, or a number of slots. Immutable.

    ``str(limit)`` is its text, which :meth:`parse` reads.

    Attributes:
        rate: A :class:`Rate`, or a :class:`Concurrency` for a number of slots.
        burst: The capacity: the units that can pass at once, 1 to 1e9. For algorithms without the
            clause ``burst``, it is the count of the rate. For the others, the default is 1: units
            pass evenly spaced, one every emission interval. For ``leaky-queue``, it is the length
            of the queue.
        algorithm: ``"gcra"`` (the default), ``"token-bucket"``, ``"leaky-bucket"``,
            ``"leaky-queue"``, ``"fixed-window"``, ``"sliding-log"``, ``"sliding-window"`` or
            ``"adaptive"``; ``"concurrency"`` for a number of slots.
        window: Where the windows of ``fixed-window`` begin: ``"epoch"`` (multiples of the period
            since 1970, the default), ``"first-request"``, or a :class:`Calendar`.
        parts: The number of sub-windows of ``sliding-window``, 1 to 100; default 1.
        oldest: How to count the oldest sub-window, which lies only partly within the last period.
            ``"weighted"`` (the default) counts the share of it within the period. ``"dropped"``
            ignores it.
        max_keys: The number of keys of the name that may be in use at once, 1 to 1e9. None (the
            default): any number. If a name has several limits, the smallest value applies.
        max_waiting: The number of tasks that may wait in lines for the name, or for one key of it,
            1 to 1e9. None (the default): any number. If a name has several limits, the smallest
            value applies.
        lowest: The count to which the rate of an adaptive limit may fall, in the same period: at
            least a thousandth of the count of the rate. With slots: the number of slots to which
            it may fall, 1 to the number of ``rate``. None for limits that are not adaptive.
        latency_us: Microseconds, up to an hour. Answers that take longer reduce the rate of an
            adaptive limit. None (the default): only refusals reduce it.
        outage: What workers do with tasks of the limit while the server cannot be reached:
            ``"local"`` (the default), ``"open"`` or ``"closed"``.
        shadow: Whether the limit only counts what it would refuse, and refuses nothing. Default
            False.
        shadows: The shadow limits of the same name. The package sets it; leave it empty.

    Raises:
        LimitValueError: The algorithm is unknown, a clause does not apply to it, or a number is out
            of range or too large to be counted exactly.

    Example:
        >>> Limit(Rate(100, 1_000_000), burst=20) == Limit.parse("100/s burst 20")
        True
        >>> str(Limit(Concurrency(10), max_waiting=500))
        '10 at once max-waiting 500'
    """

    rate: Rate | Concurrency
    burst: int = None  # type: ignore[assignment]  # __post_init__ gives it a number
    algorithm: str = "gcra"
    window: str | Calendar = "epoch"
    parts: int = 1
    oldest: str = "weighted"
    max_keys: int | None = None
    max_waiting: int | None = None
    lowest: int | None = None
    latency_us: int | None = None
    outage: str = "local"
    shadow: bool = False
    shadows: tuple[Limit, ...] = ()

    def __post_init__(self) -> None:
        self._check_common()
        if isinstance(self.rate, Concurrency):
            self._check_slots(self.rate)
            return
        if not isinstance(self.rate, Rate):
            raise LimitValueError(f"{shown(self.rate)} is not a Rate; Limit.parse() parses text")
        if self.algorithm not in tuple(CLAUSES):
            allowed = ", ".join(ALGORITHMS)
            raise LimitValueError(f"unknown algorithm {shown(self.algorithm)}; allowed: {allowed}")
        if "burst" not in CLAUSES[self.algorithm]:
            if self.burst not in (None, self.rate.count):
                raise wrong_clause_error("burst", self.algorithm)
            self._set(burst=self.rate.count)
        elif self.burst is None:
            self._set(burst=1)
        check_whole("burst", self.burst, MAX_UNITS)
        for keyword in self._own_clauses():
            if keyword not in CLAUSES[self.algorithm]:
                raise wrong_clause_error(keyword, self.algorithm)
        self._check_exact(self.rate)
        checks = {
            ADAPTIVE: self._check_adaptive,
            "fixed-window": self._check_window,
            "sliding-window": self._check_parts,
        }
        if self.algorithm in checks:
            checks[self.algorithm](self.rate)

    def _check_slots(self, slots: Concurrency) -> None:
        head = self.burst, self.algorithm
        own = self._own_clauses()
        if self.lowest is not None:
            check_whole("lowest number of slots", self.lowest, slots.slots, "(the highest)")
            own.pop("latency", None)
            self._check_latency()
        if head not in ((None, "gcra"), (slots.slots, CONCURRENCY)) or own:
            raise LimitValueError(f"'{slots}' takes no other clauses; {SLOT_CLAUSES}")
        self._set(burst=slots.slots, algorithm=CONCURRENCY)

    def _own_clauses(self) -> dict[str, Any]:
        """Return the clauses of single algorithms, ``burst`` aside, that are not their defaults."""
        clauses: dict[str, Any] = {}
        if self.latency_us is not None:
            clauses["latency"] = self.latency_us
        if isinstance(self.window, Calendar):
            if self.window.at != "00:00":
                clauses["at"] = self.window.at
            clauses["in"] = self.window.zone
        elif self.window != "epoch":
            clauses["from"] = self.window
        if self.parts != 1:
            clauses["parts"] = self.parts
        if self.oldest != "weighted":
            clauses["oldest"] = self.oldest
        return clauses

    def _check_common(self) -> None:
        slots = isinstance(self.rate, Concurrency)
        if self.is_adaptive and self.algorithm != ADAPTIVE and not slots:
            raise LimitValueError(f"lowest {shown(self.lowest)} is for adaptive limits only")
        if self.max_keys is not None:
            check_whole("max-keys", self.max_keys, MAX_KEYS)
        if self.max_waiting is not None:
            check_whole("max-waiting", self.max_waiting, MAX_WAITING)
        if self.outage not in OUTAGE_MODES:
            allowed = ", ".join(OUTAGE_MODES)
            raise LimitValueError(f"outage {shown(self.outage)} is unknown; allowed: {allowed}")
        if self.shadow and (slots or self.algorithm not in grammar.SHADOW_ALGORITHMS):
            allowed = ", ".join(grammar.SHADOW_ALGORITHMS)
            what = "'at once'" if slots else self.algorithm
            raise LimitValueError(f"'shadow' does not apply to {what}; it is for {allowed}")

    @property
    def _max_exact_ticks(self) -> int:
        """The largest amount, in ticks, that is counted exactly."""
        return MAX_EXACT // (MAX_ADAPTIVE_RATIO if self.algorithm == ADAPTIVE else 1)

    def _check_exact(self, rate: Rate) -> None:
        numerator, _ = rate.interval
        most = self._max_exact_ticks // numerator
        if "burst" in CLAUSES[self.algorithm] and self.burst > most:
            raise LimitValueError(
                f"burst {self.burst} is too large to be counted exactly at {rate}; "
                f"allowed: at most {most}, or more at a rate with a rounder count"
            )

    def _check_adaptive(self, rate: Rate) -> None:
        if self.lowest is None:
            raise LimitValueError(
                f"an adaptive limit has no lowest rate; allowed: '{ADAPTIVE} <lowest>..{rate}'"
            )
        check_whole("lowest count", self.lowest, rate.count, "(the highest)")
        if self.lowest * MAX_ADAPTIVE_RATIO < rate.count:
            raise LimitValueError(
                f"the lowest count {self.lowest} is too far from the highest; "
                f"allowed: at least a {MAX_ADAPTIVE_RATIO}th of {rate.count}"
            )
        self._check_latency()

    def _check_latency(self) -> None:
        if self.latency_us is not None:
            check_whole("latency in microseconds", self.latency_us, UNITS["h"], "(an hour)")

    def _check_window(self, rate: Rate) -> None:
        if self.window == "epoch" and self.calendar_period == "month":
            self._set(window=Calendar())
        if isinstance(self.window, Calendar):
            if self.calendar_period is None:
                raise LimitValueError(
                    f"windows in a time zone, or at a time of a day, cannot be those of {rate}; "
                    "allowed: a period of one day, one week or one month"
                )
        elif self.window not in ("epoch", FIRST_REQUEST):
            raise LimitValueError(
                f"windows cannot begin from {shown(self.window)}; allowed: {FIRST_REQUEST!r}"
            )

    def _check_parts(self, rate: Rate) -> None:
        check_whole("number of parts", self.parts, MAX_PARTS)
        if rate.period_us % self.parts:
            raise LimitValueError(
                f"{self.parts} parts of {rate.period_us} us are not whole microseconds; "
                "allowed: a number of parts that divides the period"
            )
        if self.oldest not in ("weighted", "dropped"):
            raise LimitValueError(
                f"oldest {shown(self.oldest)} is unknown; allowed: 'weighted' or 'dropped'"
            )

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse the text of a limit.

        The text is a rate (``"100/s"``, ``"5/10s"``), a range of rates (``"adaptive 10..100/s"``)
        or a number of slots (``"10 at once"``), followed by clauses such as ``burst 20`` in any
        order, each at most once. :doc:`/reference/limits` has the grammar.

        Args:
            text: The text of the limit.

        Raises:
            LimitSyntaxError: ``text`` does not have that form. The message suggests a correction.
            LimitValueError: A part is not allowed; see :class:`Limit`.

        Example:
            >>> Limit.parse("5000/day using fixed-window in America/Los_Angeles").window.zone
            'America/Los_Angeles'
        """
        if not isinstance(text, str):
            raise LimitSyntaxError(f"{shown(text)} is not a limit; {GRAMMAR}")
        try:
            return cls(**grammar.parse_fields(text))
        except LimitError as error:
            message = str(error) if shown(text) in str(error) else f"{shown(text)}: {error}"
            suggestion = suggest(text, _is_limit)
            if suggestion is not None and suggestion != text.strip():
                problem, _, _ = message.partition("; allowed: ")
                written = f"{'the list ' * isinstance(suggestion, list)}{shown(suggestion)}"
                raise LimitSyntaxError(f"{problem}; allowed: write {written}") from None
            raise type(error)(message) from None

    @classmethod
    def of(cls, limit: str | Limit) -> Limit:
        """Return ``limit`` itself, or parse its text.

        Args:
            limit: A limit, or its text. Raises the errors of :meth:`parse`.
        """
        return limit if isinstance(limit, Limit) else cls.parse(limit)

    @property
    def is_adaptive(self) -> bool:
        """Whether the rate, or the number of slots, follows the answers of an API.

        :meta private:
        """
        return self.lowest is not None

    @property
    def calendar_period(self) -> str | None:
        """The period if it is a day, a week or a month: ``"d"``, ``"w"``, ``"month"``; or None.

        :meta private:
        """
        if isinstance(self.rate, Concurrency):
            return None
        return next((unit for unit in CALENDAR_PERIODS if UNITS[unit] == self.rate.period_us), None)

    @property
    def ticks(self) -> tuple[int, int]:
        """Ticks per unit and ticks per microsecond; ``(0, 1)`` for a number of slots.

        Algorithms that drain count in ticks, fractions of a microsecond. The quotient of the two
        numbers is the emission interval in microseconds. A unit is a multiple of a million ticks,
        so that a millionth of a unit is a whole number of them, if that can be counted exactly.

        :meta private:
        """
        if isinstance(self.rate, Concurrency):
            return 0, 1
        p, q = self.rate.interval
        finest = MILLION // gcd(p, MILLION)
        for finer in (finest, *(10**digits for digits in range(5, 0, -1))):
            exact = self.burst * p * finer <= self._max_exact_ticks // 2
            # The scripts keep an adaptive rate in millionths of the highest.
            longest = MAX_BOOKING_US if self.algorithm != ADAPTIVE else MILLION
            if exact and longest * q * finer <= MAX_EXACT // 4:
                return p * finer, q * finer
        return p, q

    @property
    def lowest_share(self) -> int:
        """The lowest rate of an adaptive limit, in millionths of its highest, rounded up.

        :meta private:
        """
        assert isinstance(self.rate, Rate) and self.lowest  # noqa: PT018, S101  # it is adaptive
        return -(-self.lowest * MILLION // self.rate.count)

    def check_cost(self, cost: Cost, name: str, *, allow_zero: bool = False) -> int:
        """Convert a cost to millionths of a unit, and check that this limit can ever admit it.

        ``name`` is the name of this limit, for the message. A peek may have a cost of 0.

        Raises:
            CostError: It is not a number, not above 0, or above the burst.

        :meta private:
        """
        amount = to_millionths(cost, allow_zero=allow_zero)
        if amount > self.burst * MILLION and self.algorithm != CONCURRENCY:
            raise CostError(
                f"cost {shown(cost)} can never pass limit {shown(name)} ({self}); "
                f"allowed: at most {self.burst}"
            )
        return amount

    def __str__(self) -> str:
        words = [f"{ADAPTIVE} {self.lowest}..{self.rate}" if self.is_adaptive else str(self.rate)]
        if "burst" in CLAUSES.get(self.algorithm, ()) and self.burst != 1:
            words.append(f"burst {self.burst}")
        if self.algorithm not in ("gcra", ADAPTIVE, CONCURRENCY):
            words.append(f"using {self.algorithm}")
        for keyword, value in self._own_clauses().items():
            text = "{}{}".format(*in_longest_unit(value)) if keyword == "latency" else value
            words.append(f"{keyword} {text}")
        if self.max_keys is not None:
            words.append(f"max-keys {self.max_keys}")
        if self.max_waiting is not None:
            words.append(f"max-waiting {self.max_waiting}")
        if self.outage != "local":
            words.append(f"outage {self.outage}")
        return " ".join([*words, grammar.SHADOW] if self.shadow else words)


#: The limits of one name; all of them have to allow.
Limits = tuple[Limit, ...]

#: In the place of limits where a name has only shadow limits: it never refuses.
UNLIMITED = Limit(Rate(MAX_UNITS, UNITS["s"]), burst=MAX_UNITS)


def _is_limit(text: str) -> bool:
    try:
        Limit(**grammar.parse_fields(text))
    except LimitError:
        return False
    return True
