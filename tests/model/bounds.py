"""What limits may admit at most, worked out from nothing but what was admitted, and when.

No state is kept as the scripts keep it: each bound is a sum over a window. Changes of a definition
divide the history of a name and key into eras; see ``current`` of
``celery_throttle/algorithms/definition.py`` for what goes over from one to the next. Meters and
logs are enough here: ``tests/algorithms`` holds every algorithm to its own bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_throttle.algorithms.definition import decisive_fields
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.limits.rate import Rate

METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")


@dataclass(slots=True)
class Admission:
    """What starts: when, by the time that really passed; cost in millionths."""

    passed: int
    cost: int


@dataclass(slots=True)
class Era:
    """What one limit admitted while one definition was in force.

    Attributes:
        limit: as defined.
        admitted: first what the era before has left in use, as if it had been taken then.
        used: whether anything was taken since.
        stepped: how often the clock stepped back meanwhile. What was booked ahead then counts as
            taken at that moment, so each time ``FARTHEST`` more is paid off than passed.
    """

    limit: Limit
    admitted: list[Admission] = field(default_factory=list)
    used: bool = False
    stepped: int = 0

    @property
    def rate(self) -> Rate:
        assert isinstance(self.limit.rate, Rate)
        return self.limit.rate

    @property
    def most(self) -> int:
        return self.limit.burst * MILLION

    def _in_order(self) -> list[Admission]:
        return sorted(self.admitted, key=lambda one: one.passed)

    def check(self) -> None:
        """Never over, in any window."""
        if self.limit.algorithm in METERS:
            level = self._levels()[1] - self._forgiven()
        else:
            level = self._most_in(self.rate.period_us - bool(self.stepped) * MAX_BOOKING_US)
        assert level <= self.most, f"{self.limit} admitted {level / MILLION}: {self._in_order()}"

    def in_use(self, passed: int) -> int:
        """What is in use at least, in millionths."""
        rate = self.rate
        if self.limit.algorithm not in METERS:
            begin = passed - rate.period_us
            return sum(one.cost for one in self.admitted if one.passed > begin)
        last, _, at = self._levels()
        drained = -(-max(0, passed - at) * rate.count * MILLION // rate.period_us)
        return max(0, last - drained - self._forgiven())

    def _forgiven(self) -> int:
        return -(-self.stepped * MAX_BOOKING_US * self.rate.count * MILLION // self.rate.period_us)

    def _levels(self) -> tuple[int, int, int]:
        """The most over all windows of what was admitted, less the rate times the window.

        That of windows up to the last admission, that of all windows, and when the last was.
        """
        rate, level, highest, before = self.rate, 0, 0, 0
        for one in self._in_order():
            drained = (one.passed - before) * rate.count * MILLION
            level = max(0, level - drained) + one.cost * rate.period_us
            highest, before = max(highest, level), one.passed
        return level // rate.period_us, -(-highest // rate.period_us), before

    def _most_in(self, period: int) -> int:
        """The most in any half-open window of real time."""
        admitted = self._in_order()
        total, highest, end = 0, 0, 0
        for one in admitted if period > 0 else ():
            total += one.cost
            while admitted[end].passed <= one.passed - period:
                total -= admitted[end].cost
                end += 1
            highest = max(highest, total)
        return highest


class Histories:
    """What all names and keys admitted.

    Args:
        limits: the definitions of the names.
    """

    def __init__(self, limits: dict[LimitRef, tuple[Limit, ...]]) -> None:
        self.limits = dict(limits)
        self._eras: dict[LimitRef, list[Era]] = {}
        self._used: set[LimitRef] = set()

    def in_force(self, ref: LimitRef) -> tuple[Limit, ...]:
        """The limits of a name and key."""
        return self.limits.get(ref) or self.limits[LimitRef(ref.name, None)]

    def eras(self, ref: LimitRef) -> list[Era]:
        """Those in which its limits are now; slots have none."""
        if ref not in self._eras:
            self._eras[ref] = [Era(limit) for limit in _rates(self.in_force(ref))]
        return self._eras[ref]

    def is_used(self, ref: LimitRef) -> bool:
        """Whether anything may be in use, under these limits or others before."""
        return ref in self._used

    def admit(self, ref: LimitRef, cost: int, passed: int) -> list[Admission]:
        """Something starts; what is told of it may be worth less later."""
        self._used.add(ref)
        admitted = []
        for era in self.eras(ref):
            era.used = True
            era.admitted.append(Admission(passed, cost))
            admitted.append(era.admitted[-1])
        return admitted

    def refund(self, admitted: Sequence[Admission], cost: int) -> None:
        """What was reserved was worth less; not if its limits have changed since, or were reset."""
        current = {id(one) for eras in self._eras.values() for era in eras for one in era.admitted}
        for one in admitted:
            if id(one) in current:
                one.cost = min(one.cost, cost)

    def define(self, ref: LimitRef, limits: tuple[Limit, ...] | None, passed: int) -> None:
        """Other limits are in force from now on; None takes those of a key back."""
        known = [one for one in self._eras if one == ref or ref == LimitRef(one.name, None)]
        before = {one: self.in_force(one) for one in known}
        if limits is None:
            self.limits.pop(ref, None)
        else:
            self.limits[ref] = limits
        for one in known:
            # The same limits with other bounds of keys and tasks, or written otherwise, go on.
            if [*map(decisive_fields, self.in_force(one))] != [*map(decisive_fields, before[one])]:
                self._follow(one, passed)

    def _follow(self, ref: LimitRef, passed: int) -> None:
        ended = self._eras.pop(ref)
        found = [era.in_use(passed) for era in ended]
        # A limit that has none in its place goes on with the most of any, if anything was kept.
        rest = max(found, default=0) if any(era.used for era in ended) else 0
        for place, era in enumerate(self.eras(ref)):
            carried = min(found[place] if place < len(found) else rest, era.most)
            if carried:
                era.admitted.append(Admission(passed, carried))
        for era in ended:
            era.check()

    def reset(self, ref: LimitRef) -> None:
        """What was used is forgotten."""
        self._used.discard(ref)
        for era in self._eras.pop(ref, []):
            era.check()

    def step_back(self) -> None:
        """The clock did."""
        for eras in self._eras.values():
            for era in eras:
                era.stepped += 1

    def check(self) -> None:
        """Never over."""
        for eras in self._eras.values():
            for era in eras:
                era.check()


def _rates(limits: Sequence[Limit]) -> list[Limit]:
    return [limit for limit in limits if limit.algorithm != CONCURRENCY]
