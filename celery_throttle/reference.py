"""The algorithms in pure Python and whole numbers: what the scripts on the server must agree with.

``lua/algorithms.lua`` and ``lua/decide.lua`` hold the same rules under the same names; the tests
run both side by side. Here nothing is rounded but where a rule says so.

Time is an argument: whole microseconds of any clock. The emission interval of a limit is p/q
microseconds, and every amount is counted in q-ths of a microsecond ("ticks"): one unit is p ticks.
A state is an immutable value, or None for a limit that has never been used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_throttle.decision import Decision
from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits import MAX_EXACT, Limit
from celery_throttle.scope import LimitRef

#: The farthest a slot is ever booked ahead, in microseconds. What is in use beyond the capacity and
#: this can only come from a clock that stepped back or a limit made smaller, and is forgiven.
FARTHEST = 20_000

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Gcra:
    """The generic cell rate algorithm, in its virtual scheduling form (ITU-T I.371, annex A).

    Attributes:
        tat: The theoretical arrival time, in microseconds: when the limit is full again.
        ticks: What comes on top of it, less than a microsecond.
        p: Ticks a unit, when this was written; ``q``: ticks a microsecond.
    """

    tat: int
    ticks: int
    p: int
    q: int

    @classmethod
    def keep(cls, limit: Limit, used: int, at: int) -> Gcra:
        """Return what to keep when ``used`` ticks are in use at the time ``at``."""
        p, q = limit.rate.interval
        microseconds, ticks = divmod(used, q)
        return cls(at + microseconds, ticks, p, q)

    def used(self, now: int) -> int:
        """Return the ticks in use; negative when the limit has been full for a while."""
        return (self.tat - now) * self.q + self.ticks


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The token bucket with lazy refill: tokens are added up when somebody looks, not by a timer.

    Attributes:
        tokens: What was left, in ticks; negative when slots were booked ahead.
        counted: When that was, in microseconds.
        p: Ticks a unit, when this was written; ``q``: ticks a microsecond.
        burst: The capacity in units, when this was written.
    """

    tokens: int
    counted: int
    p: int
    q: int
    burst: int

    @classmethod
    def keep(cls, limit: Limit, used: int, at: int) -> TokenBucket:
        """Return what to keep when ``used`` ticks are in use at the time ``at``."""
        p, q = limit.rate.interval
        return cls(limit.burst * p - used, at, p, q, limit.burst)

    def used(self, now: int) -> int:
        """Return the ticks in use; negative when the limit has been full for a while."""
        return self.burst * self.p - self.tokens - (now - self.counted) * self.q


State = Gcra | TokenBucket

ALGORITHMS: Mapping[str, type[Gcra | TokenBucket]] = {
    "gcra": Gcra,
    "token-bucket": TokenBucket,
}


def adopt(limit: Limit, state: State, now: int) -> State:
    """Return the state as ``limit`` keeps it.

    That is itself, unless another rate or algorithm wrote it. Such a state keeps its units, not its
    time: one unit used under "1/h" holds back one unit, not one hour, when the limit becomes
    "100/s". A state beyond what can be booked is cut to that. Who reads one of these must keep the
    result, or it would be read anew, later and differently.
    """
    used = state.used(now)
    if used <= 0:
        return state
    p, q = limit.rate.interval
    algorithm = ALGORITHMS[limit.algorithm]
    same = isinstance(state, algorithm) and (state.p, state.q) == (p, q)
    if not same:
        # No limit can use more. The scripts could not tell how much more exactly.
        used = min(used, MAX_EXACT + FARTHEST * state.q)
        used = _divided_up(used * p, state.p)
    most = limit.burst * p + FARTHEST * q
    return state if same and used <= most else algorithm.keep(limit, min(used, most), now)


def used(limit: Limit, state: State | None, now: int) -> int:
    """Return the ticks in use; above the capacity by what is booked ahead."""
    return 0 if state is None else max(0, adopt(limit, state, now).used(now))


def wait(limit: Limit, in_use: int, cost: int) -> int | None:
    """Return the microseconds until ``cost`` would pass, rounded up; None when it never can."""
    if cost > limit.burst:
        return None
    p, q = limit.rate.interval
    return max(0, _divided_up(in_use + cost * p - limit.burst * p, q))


def take(limit: Limit, in_use: int, cost: int, now: int, at: int | None = None) -> State:
    """Return the state once ``cost`` is taken for a start at ``at``: now, or not before it."""
    p, q = limit.rate.interval
    start = now if at is None else at
    then = max(0, in_use - (start - now) * q)
    return ALGORITHMS[limit.algorithm].keep(limit, then + cost * p, start)


def left(limit: Limit, in_use: int) -> tuple[int, int]:
    """Return the whole units left, and the microseconds until the limit is full, rounded up."""
    p, q = limit.rate.interval
    return max(0, limit.burst * p - in_use) // p, _divided_up(in_use, q)


class Local:
    """Limits in the memory of one process: decides as the server does, for tests and when alone.

    Not for several threads at once. It keeps the state of every key it has seen.

    Args:
        limits: Name to limit, as text or :class:`Limit`.
    """

    def __init__(self, limits: Mapping[str, str | Limit] | None = None) -> None:
        self._limits: dict[LimitRef, Limit] = {}
        self._states: dict[LimitRef, State] = {}
        for name, limit in (limits or {}).items():
            self.define(LimitRef(name, None), limit)

    def define(self, ref: LimitRef, limit: str | Limit) -> None:
        """Define a limit, or one key of it; units in use stay in use."""
        self._limits[ref] = Limit.of(limit)

    def reset(self, ref: LimitRef) -> None:
        """Forget what was used of one limit and key."""
        self._states.pop(ref, None)

    def acquire(self, costs: Mapping[LimitRef, int], now: int) -> Decision:
        """Take the cost of each limit from it, or nothing from any.

        Raises:
            CostError: a cost is no whole number from 1 to the burst of its limit.
            UnknownLimitError: a limit is not defined.
        """
        return self._decide(costs, now, peek=False)

    def peek(self, costs: Mapping[LimitRef, int], now: int) -> Decision:
        """Return the decision :meth:`acquire` would give, with nothing taken. Costs may be 0."""
        return self._decide(costs, now, peek=True)

    def _decide(self, costs: Mapping[LimitRef, int], now: int, *, peek: bool) -> Decision:
        if not costs:
            raise LimitValueError("no limit was named; allowed: one or more")
        limits = {ref: self._limit(ref) for ref in costs}
        for ref, limit in limits.items():
            limit.check_cost(costs[ref], ref.name, allow_zero=peek)
        in_use = {ref: self._look(ref, limit, now) for ref, limit in limits.items()}
        waits = {ref: wait(limit, in_use[ref], costs[ref]) or 0 for ref, limit in limits.items()}
        longest = max(waits, key=waits.__getitem__)
        allowed = waits[longest] == 0
        if allowed and not peek:
            for ref, limit in limits.items():
                self._states[ref] = take(limit, in_use[ref], costs[ref], now)
                in_use[ref] = used(limit, self._states[ref], now)
        rest = {ref: left(limit, in_use[ref]) for ref, limit in limits.items()}
        told = min(rest, key=lambda ref: rest[ref][0]) if allowed else longest
        return Decision(
            allowed=allowed,
            limit=limits[told].burst,
            remaining=rest[told][0],
            retry_after=waits[longest] / _MICROSECONDS,
            reset_after=max(reset for _, reset in rest.values()) / _MICROSECONDS,
            bound_by=None if allowed else longest.name,
        )

    def _limit(self, ref: LimitRef) -> Limit:
        limit = self._limits.get(ref) or self._limits.get(LimitRef(ref.name, None))
        if limit is None:
            known = ", ".join(sorted({repr(known.name) for known in self._limits})) or "none"
            raise UnknownLimitError(f"limit {shown(ref.name)} is not defined; allowed: {known}")
        return limit

    def _look(self, ref: LimitRef, limit: Limit, now: int) -> int:
        state = self._states.get(ref)
        if state is None:
            return 0
        self._states[ref] = adopt(limit, state, now)
        return used(limit, self._states[ref], now)


def _divided_up(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)
