"""Limit: what users write as ``"100/s burst 20 using token-bucket"``, as an immutable value.

``str(limit)`` is for people, and parses back to an equal limit. What the scripts on the server
read of a limit is made in :mod:`celery_throttle.store.definitions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from celery_throttle.errors import CostError, LimitError, LimitSyntaxError, LimitValueError, shown
from celery_throttle.limits import grammar
from celery_throttle.limits.calendar import PERIODS, Calendar
from celery_throttle.limits.cost import MILLION, Cost, millionths
from celery_throttle.limits.grammar import (
    ADAPTIVE,
    ALGORITHMS,
    CLAUSES,
    CONCURRENCY,
    FIRST_REQUEST,
    OUTAGES,
    WITH_SLOTS,
    meaningless,
)
from celery_throttle.limits.rate import (
    GRAMMAR,
    MAX_EXACT,
    MAX_UNITS,
    UNITS,
    Concurrency,
    Rate,
    check_whole,
    show_period,
)
from celery_throttle.limits.suggestions import suggest

#: The farthest a slot is ever booked ahead, in microseconds. A state that was written farther in
#: the future can only come from a clock that stepped back since.
FARTHEST = 20_000

#: The longest that the lease of a slot, or of a worker's claims, may last, in seconds.
LONGEST_LEASE = 3600

#: An adaptive limit's lower bound is at least its upper bound divided by this: what it counts stays
#: exact at any rate between.
RANGE = 1000

MAX_PARTS = 100
MAX_KEYS = MAX_WAITING = 10**9

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate and the algorithm that counts, or how many may be in progress at once.

    Attributes:
        rate: :class:`Rate`, or :class:`Concurrency`.
        burst: The capacity: the units that can pass at once. For algorithms without the clause it
            is the count of the rate; for the others 1 unless given, so that units pass evenly
            spaced, one every emission interval. For ``leaky-queue`` it is the length of the queue.
        algorithm: One of ``ALGORITHMS``, ``"gcra"`` unless given; or ``"adaptive"``.
        window: Where the windows of ``fixed-window`` begin: ``"epoch"`` (multiples of the period
            since 1970), ``"first-request"``, or a :class:`Calendar`.
        parts: Sub-windows of ``sliding-window``; with the one before them if ``oldest`` is
            ``"weighted"``, without it if ``"dropped"``.
        max_keys: How many keys of the name may be in use at once; None for any number.
        max_waiting: How many tasks may wait in lines at the name, or at one key of it; None for
            any number. Of several limits of a name the least counts, of this and of ``max_keys``.
        lowest: Of an adaptive limit, the count to which its rate may fall; of the rate's period.
        latency_us: Answers that take longer, in microseconds, let an adaptive limit's rate fall;
            None if only refusals do.
        outage: What workers do with its tasks while the server cannot be reached: one of
            ``OUTAGES``, ``"local"`` unless given.

    Raises:
        LimitValueError: an unknown algorithm, a clause that means nothing to it, or a number out of
            range or too large to be counted exactly.
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

    def __post_init__(self) -> None:
        self._check_bounds()
        if isinstance(self.rate, Concurrency):
            self._check_slots(self.rate)
            return
        if not isinstance(self.rate, Rate):
            raise LimitValueError(f"{shown(self.rate)} is no Rate; Limit.parse() reads text")
        if self.algorithm not in tuple(CLAUSES):
            allowed = ", ".join(ALGORITHMS)
            raise LimitValueError(f"unknown algorithm {shown(self.algorithm)}; allowed: {allowed}")
        if "burst" not in CLAUSES[self.algorithm]:
            if self.burst not in (None, self.rate.count):
                raise meaningless("burst", self.algorithm)
            self._set(burst=self.rate.count)
        elif self.burst is None:
            self._set(burst=1)
        check_whole("burst", self.burst, MAX_UNITS)
        self._check_exact(self.rate)
        self._check_adaptive(self.rate)
        self._check_window(self.rate)
        self._check_parts(self.rate)

    def _check_slots(self, slots: Concurrency) -> None:
        given = self.burst, self.algorithm, self.window, self.parts, self.oldest
        plain = "epoch", 1, "weighted"
        adaptive = self.lowest is not None or self.latency_us is not None
        if adaptive or given not in ((None, "gcra", *plain), (slots.slots, CONCURRENCY, *plain)):
            raise LimitValueError(f"'{slots}' is all there is to say; {WITH_SLOTS}")
        self._set(burst=slots.slots, algorithm=CONCURRENCY)

    def _check_bounds(self) -> None:
        if self.max_keys is not None:
            check_whole("max-keys", self.max_keys, MAX_KEYS)
        if self.max_waiting is not None:
            check_whole("max-waiting", self.max_waiting, MAX_WAITING)
        if self.outage not in OUTAGES:
            allowed = ", ".join(OUTAGES)
            raise LimitValueError(f"outage {shown(self.outage)} is unknown; allowed: {allowed}")

    @property
    def _most_exact(self) -> int:
        """The largest amount, in ticks, that is counted exactly."""
        return MAX_EXACT // (RANGE if self.algorithm == ADAPTIVE else 1)

    def _check_exact(self, rate: Rate) -> None:
        numerator, _ = rate.interval
        most = self._most_exact // numerator
        if "burst" in CLAUSES[self.algorithm] and self.burst > most:
            raise LimitValueError(
                f"burst {self.burst} is too large to be counted exactly at {rate}; "
                f"allowed: at most {most}, or more at a rate with a rounder count"
            )

    def _check_adaptive(self, rate: Rate) -> None:
        if self.algorithm != ADAPTIVE:
            if self.lowest is not None or self.latency_us is not None:
                raise meaningless("latency", self.algorithm)
            return
        if self.lowest is None:
            raise LimitValueError(
                f"an adaptive limit has two bounds; allowed: '{ADAPTIVE} <lowest>..{rate}'"
            )
        check_whole("lowest count", self.lowest, rate.count, "(the highest)")
        if self.lowest * RANGE < rate.count:
            raise LimitValueError(
                f"the lowest count {self.lowest} is too far from the highest; "
                f"allowed: at least a {RANGE}th of {rate.count}"
            )
        if self.latency_us is not None:
            check_whole("latency in microseconds", self.latency_us, UNITS["h"], "(an hour)")

    def _check_window(self, rate: Rate) -> None:
        if self.algorithm != "fixed-window" and self.window != "epoch":
            raise meaningless("from" if self.window == FIRST_REQUEST else "in", self.algorithm)
        if self.window == "epoch" and self.period == "month" and self.algorithm == "fixed-window":
            self._set(window=Calendar())
        if isinstance(self.window, Calendar):
            if self.period is None:
                raise LimitValueError(
                    f"windows in a time zone, or at a time of a day, cannot be those of {rate}; "
                    "allowed: a period of one day, one week or one month"
                )
            self.window.check(self.period)
        elif self.window not in ("epoch", FIRST_REQUEST):
            raise LimitValueError(
                f"windows cannot begin from {shown(self.window)}; allowed: {FIRST_REQUEST!r}"
            )

    def _check_parts(self, rate: Rate) -> None:
        if self.algorithm != "sliding-window":
            if self.parts != 1 or self.oldest != "weighted":
                raise meaningless("parts" if self.parts != 1 else "oldest", self.algorithm)
            return
        check_whole("number of parts", self.parts, MAX_PARTS)
        if rate.period_us % self.parts:
            raise LimitValueError(
                f"{self.parts} parts of {rate.period_us} us are no whole microseconds; "
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
        """Read ``"10 at once"``, or a rate and its clauses: ``"100/s burst 20 using gcra"``.

        Or ``"adaptive 10..100/s"``: a rate between two bounds. The clauses may come in any order,
        each at most once:

        - ``using <algorithm>``
        - ``burst <units>``: gcra, token-bucket, leaky-bucket, leaky-queue, adaptive
        - ``latency <time>``: adaptive
        - ``from first-request``: fixed-window
        - ``in <zone>``, ``at <hh:mm>``: fixed-window of a day, a week or a month
        - ``parts <count>``, ``oldest weighted`` or ``oldest dropped``: sliding-window
        - ``max-keys <count>``, ``max-waiting <count>``, ``outage local``, ``outage open`` or
          ``outage closed``: all, and after ``at once``, too

        Raises:
            LimitSyntaxError: if ``text`` is not of that form.
            LimitValueError: see :class:`Limit`.
        """
        if not isinstance(text, str):
            raise LimitSyntaxError(f"{shown(text)} is not a limit; {GRAMMAR}")
        try:
            return cls(**grammar.read(text))
        except LimitError as error:
            what = str(error) if shown(text) in str(error) else f"{shown(text)}: {error}"
            meant = suggest(text, _is_limit)
            if meant is not None and meant != text.strip():
                wrong, _, _ = what.partition("; allowed: ")
                several = "the list " if isinstance(meant, list) else ""
                raise LimitSyntaxError(f"{wrong}; allowed: write {several}{shown(meant)}") from None
            raise type(error)(what) from None

    @classmethod
    def of(cls, limit: str | Limit) -> Limit:
        """Return ``limit`` itself, or the limit its text means. Raises as ``parse`` does."""
        return limit if isinstance(limit, Limit) else cls.parse(limit)

    @property
    def period(self) -> str | None:
        """The period, if it is one of those that a calendar has: ``"d"``, ``"w"``, ``"month"``."""
        if isinstance(self.rate, Concurrency):
            return None
        return next((unit for unit in PERIODS if UNITS[unit] == self.rate.period_us), None)

    @property
    def ticks(self) -> tuple[int, int]:
        """The emission interval in microseconds, as a fraction that is not reduced.

        Amounts are counted in parts of a microsecond, of which its denominator tells the number
        ("ticks"), and one unit is as many as its numerator: a million times as many as a millionth
        of a unit, if that can be counted exactly. ``(0, 1)`` for a number of slots.
        """
        if isinstance(self.rate, Concurrency):
            return 0, 1
        p, q = self.rate.interval
        finest = MILLION // gcd(p, MILLION)
        for finer in (finest, *(10**digits for digits in range(5, 0, -1))):
            exact = self.burst * p * finer <= self._most_exact // 2
            # A rate between two bounds is told in millionths.
            longest = FARTHEST if self.algorithm != ADAPTIVE else MILLION
            if exact and longest * q * finer <= MAX_EXACT // 4:
                return p * finer, q * finer
        return p, q

    @property
    def floor(self) -> int:
        """The lowest rate of an adaptive limit, in millionths of its highest, rounded up."""
        assert isinstance(self.rate, Rate) and self.lowest  # noqa: PT018, S101  # only these have one
        return -(-self.lowest * MILLION // self.rate.count)

    def check_cost(self, cost: Cost, name: str, *, allow_zero: bool = False) -> int:
        """Return a cost in millionths of a unit if this limit can ever admit it.

        ``name`` is the name of this limit, for the message. Zero is for a peek.

        Raises:
            CostError: it is no number, not above zero, or above the burst.
        """
        amount = millionths(cost, allow_zero=allow_zero)
        if amount > self.burst * MILLION and self.algorithm != CONCURRENCY:
            raise CostError(
                f"cost {shown(cost)} can never fit in limit {shown(name)} ({self}); "
                f"allowed: at most {self.burst}"
            )
        return amount

    def __str__(self) -> str:
        return " ".join([*self._clauses(), *self._bounds()])

    def _clauses(self) -> list[str]:
        if isinstance(self.rate, Concurrency):
            return [str(self.rate)]
        adaptive = self.algorithm == ADAPTIVE
        told = [f"{ADAPTIVE} {self.lowest}..{self.rate}" if adaptive else str(self.rate)]
        if "burst" in CLAUSES[self.algorithm] and self.burst != 1:
            told.append(f"burst {self.burst}")
        if self.latency_us is not None:
            told.append(f"latency {show_period(self.latency_us)}")
        if self.algorithm != "gcra" and not adaptive:
            told.append(f"using {self.algorithm}")
        if isinstance(self.window, Calendar):
            at = "" if self.window.at == "00:00" else f"at {self.window.at} "
            told.append(f"{at}in {self.window.zone}")
        elif self.window != "epoch":
            told.append(f"from {self.window}")
        if self.parts != 1:
            told.append(f"parts {self.parts}")
        if self.oldest != "weighted":
            told.append(f"oldest {self.oldest}")
        return told

    def _bounds(self) -> Iterator[str]:
        if self.max_keys is not None:
            yield f"max-keys {self.max_keys}"
        if self.max_waiting is not None:
            yield f"max-waiting {self.max_waiting}"
        if self.outage != "local":
            yield f"outage {self.outage}"


def _is_limit(text: str) -> bool:
    try:
        Limit(**grammar.read(text))
    except LimitError:
        return False
    return True


def strictest(bounds: Iterable[int | None]) -> int | None:
    """Of the ``max_keys``, or the ``max_waiting``, of several limits the one that counts."""
    return min((bound for bound in bounds if bound is not None), default=None)


def check_name(name: str) -> str:
    """Return ``name`` if a limit can have it, and raise LimitSyntaxError if not."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise LimitSyntaxError(
        f"{shown(name)} cannot name a limit; allowed: up to 100 ASCII letters, digits and "
        "'_', '.', '-', of which the first is a letter or '_'"
    )
