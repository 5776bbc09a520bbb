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
class Definition:
    """A limit in force, and what it takes to read a state that was written before it was.

    Attributes:
        limit: The limit.
        since: When it came into force, in microseconds.
        old_since: When the one before it came into force; as ``since`` if there was none.
    """

    limit: Limit
    since: int
    old_since: int

    def followed_by(self, limit: Limit, now: int) -> Definition:
        """Return the definition that takes the place of this one."""
        same = limit.definition() == self.limit.definition()  # however the rates are written
        return self if same else Definition(limit, now, self.since)


@dataclass(frozen=True, slots=True)
class Gcra:
    """The generic cell rate algorithm, in its virtual scheduling form (ITU-T I.371, annex A).

    Attributes:
        tat: The theoretical arrival time, in microseconds: when the limit is full again.
        ticks: What comes on top of it, less than a microsecond.
        p: Ticks a unit, when this was written; ``q``: ticks a microsecond.
        since: Since when the definition was in force under which this was written.
    """

    tat: int
    ticks: int
    p: int
    q: int
    since: int

    @classmethod
    def keep(cls, definition: Definition, used: int, at: int) -> Gcra:
        """Return what to keep when ``used`` ticks are in use at the time ``at``."""
        p, q = definition.limit.rate.interval
        microseconds, ticks = divmod(used, q)
        return cls(at + microseconds, ticks, p, q, definition.since)

    def used(self, now: int) -> int:
        """Return the ticks in use; negative when the limit has been full for a while."""
        return (self.tat - now) * self.q + self.ticks


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The token bucket with lazy refill: tokens are added up when somebody looks, not by a timer.

    Attributes:
        tokens: What was left, in ticks; negative when slots were booked ahead.
        counted: When that was, in microseconds.
        burst: The capacity in units, when this was written.
        p: Ticks a unit, when this was written; ``q``: ticks a microsecond.
        since: Since when the definition was in force under which this was written.
    """

    tokens: int
    counted: int
    burst: int
    p: int
    q: int
    since: int

    @classmethod
    def keep(cls, definition: Definition, used: int, at: int) -> TokenBucket:
        """Return what to keep when ``used`` ticks are in use at the time ``at``."""
        burst = definition.limit.burst
        p, q = definition.limit.rate.interval
        return cls(burst * p - used, at, burst, p, q, definition.since)

    def used(self, now: int) -> int:
        """Return the ticks in use; negative when the limit has been full for a while."""
        return self.burst * self.p - self.tokens - (now - self.counted) * self.q


State = Gcra | TokenBucket

ALGORITHMS: Mapping[str, type[Gcra | TokenBucket]] = {
    "gcra": Gcra,
    "token-bucket": TokenBucket,
}


def used(definition: Definition, state: State | None, now: int) -> int:
    """Return the ticks in use; above the capacity by what is booked ahead.

    A state written under another definition keeps its units, not its time: one unit used under
    "1/h" holds back one unit, not one hour, when the limit becomes "100/s". Its units are paid off
    at the old rate until the limit changed, and at the new one from then on. If the limit changed
    more than once since, nothing counts as paid off between these changes.
    """
    if state is None:
        return 0
    limit = definition.limit
    if _is_own(definition, state):
        return _clip(limit, state.used(now))
    known = state.since == definition.old_since
    before = definition.since if known else definition.old_since
    in_use = convert(limit, state.used(min(before, now)), state.p, state.q)
    return max(0, in_use - max(0, now - definition.since) * limit.rate.interval[1])


def convert(limit: Limit, in_use: int, p: int, q: int) -> int:
    """Return ticks of an interval of p/q as ticks of this limit: as many units, rounded up."""
    # No limit can use more than this. The scripts could not tell exactly how much more it is.
    in_use = min(max(0, in_use), MAX_EXACT + FARTHEST * q)
    return _clip(limit, _divided_up(in_use * limit.rate.interval[0], p))


def adopt(definition: Definition, state: State, now: int) -> State:
    """Return the state, written anew if a clock that stepped back has put it out of reach.

    That is beyond what can be booked, or under a definition that is not in force yet. Who reads
    such a state must keep the result, or the time that was forgiven would have to pass anyway.
    """
    if _is_own(definition, state):
        out_of_reach = state.used(now) > _most(definition.limit)
    else:
        out_of_reach = now < definition.since
    return keep(definition, used(definition, state, now), now) if out_of_reach else state


def keep(definition: Definition, in_use: int, at: int) -> State:
    """Return the state in which ``in_use`` ticks are in use at the time ``at``."""
    return ALGORITHMS[definition.limit.algorithm].keep(definition, in_use, at)


def wait(limit: Limit, in_use: int, cost: int) -> int | None:
    """Return the microseconds until ``cost`` would pass, rounded up; None when it never can."""
    if cost > limit.burst:
        return None
    p, q = limit.rate.interval
    return max(0, _divided_up(in_use + cost * p - limit.burst * p, q))


def take(definition: Definition, in_use: int, cost: int, now: int, at: int | None = None) -> State:
    """Return the state once ``cost`` is taken for a start at ``at``: now, or not before it."""
    p, q = definition.limit.rate.interval
    start = now if at is None else at
    return keep(definition, max(0, in_use - (start - now) * q) + cost * p, start)


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
        self._definitions: dict[LimitRef, Definition] = {}
        self._states: dict[LimitRef, State] = {}
        for name, limit in (limits or {}).items():
            self.define(LimitRef(name, None), limit, 0)

    def define(self, ref: LimitRef, limit: str | Limit, now: int) -> None:
        """Define a limit, or one key of it; units in use stay in use."""
        new = Limit.of(limit)
        old = self._in_force(ref)
        if old is None:
            self._definitions[ref] = Definition(new, now, now)
            return
        definition = self._definitions[ref] = old.followed_by(new, now)
        state = self._states.get(ref)
        if state is not None:
            in_use = convert(new, used(old, state, now), *old.limit.rate.interval)
            self._states[ref] = keep(definition, in_use, now)

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
        definitions = {ref: self._defined(ref) for ref in costs}
        limits = {ref: definition.limit for ref, definition in definitions.items()}
        for ref, limit in limits.items():
            limit.check_cost(costs[ref], ref.name, allow_zero=peek)
        in_use = {ref: self._look(ref, definitions[ref], now) for ref in costs}
        waits = {ref: wait(limits[ref], in_use[ref], cost) or 0 for ref, cost in costs.items()}
        longest = max(waits, key=waits.__getitem__)
        allowed = waits[longest] == 0
        if allowed and not peek:
            for ref, cost in costs.items():
                self._states[ref] = take(definitions[ref], in_use[ref], cost, now)
                in_use[ref] = used(definitions[ref], self._states[ref], now)
        rest = {ref: left(limits[ref], in_use[ref]) for ref in costs}
        told = min(rest, key=lambda ref: rest[ref][0]) if allowed else longest
        return Decision(
            allowed=allowed,
            limit=limits[told].burst,
            remaining=rest[told][0],
            retry_after=waits[longest] / _MICROSECONDS,
            reset_after=max(reset for _, reset in rest.values()) / _MICROSECONDS,
            bound_by=None if allowed else longest.name,
        )

    def _in_force(self, ref: LimitRef) -> Definition | None:
        own = self._definitions.get(ref)
        return own or self._definitions.get(LimitRef(ref.name, None))

    def _defined(self, ref: LimitRef) -> Definition:
        definition = self._in_force(ref)
        if definition is None:
            known = ", ".join(sorted({repr(known.name) for known in self._definitions})) or "none"
            raise UnknownLimitError(f"limit {shown(ref.name)} is not defined; allowed: {known}")
        return definition

    def _look(self, ref: LimitRef, definition: Definition, now: int) -> int:
        state = self._states.get(ref)
        if state is not None:
            state = self._states[ref] = adopt(definition, state, now)
        return used(definition, state, now)


def _most(limit: Limit) -> int:
    """The most ticks that can be in use."""
    p, q = limit.rate.interval
    return limit.burst * p + FARTHEST * q


def _clip(limit: Limit, in_use: int) -> int:
    return max(0, min(in_use, _most(limit)))


def _is_own(definition: Definition, state: State) -> bool:
    """Whether a state was written under a definition, not under one before it."""
    interval = definition.limit.rate.interval
    return state.since == definition.since and (state.p, state.q) == interval


def _divided_up(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)
