"""Limits in the memory of one process, decided as on the server. Twin: ``lua/decide.lua``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.costs import MILLION, Cost, in_units, millionths
from celery_throttle.decision import Decision
from celery_throttle.errors import LimitValueError, UnknownLimitError, shown
from celery_throttle.limits import ALGORITHMS, Limit
from celery_throttle.rates import Rate
from celery_throttle.reference.log import SlidingLog
from celery_throttle.reference.meters import Gcra, LeakyBucket, LeakyQueue, TokenBucket
from celery_throttle.reference.slots import Slots
from celery_throttle.reference.state import State, is_ahead
from celery_throttle.reference.windows import FixedWindow, SlidingWindow
from celery_throttle.scope import LimitRef

_MICROSECONDS = 1_000_000

STATES: Mapping[str, type[State]] = {
    "gcra": Gcra,
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "leaky-queue": LeakyQueue,
    "fixed-window": FixedWindow,
    "sliding-log": SlidingLog,
    "sliding-window": SlidingWindow,
    "concurrency": Slots,
}


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
        return self if same(limit, self.limit) else Definition(limit, now, self.since)


def same(one: Limit, other: Limit) -> bool:
    """Whether two limits admit the same, however their rates are written."""

    def numbers(limit: Limit) -> tuple[object, ...]:
        window = isinstance(limit.rate, Rate) and "burst" not in ALGORITHMS[limit.algorithm]
        period = limit.rate.period_us if window and isinstance(limit.rate, Rate) else None
        kind = limit.algorithm, limit.window, limit.parts, limit.oldest
        return *kind, limit.burst, limit.ticks, period

    return numbers(one) == numbers(other)


def current(definition: Definition, state: State | None, now: int) -> tuple[State, bool]:
    """Return the state under a definition, and whether it must be kept even if nothing is taken.

    A state that was written under another definition keeps its units, not its time: one unit used
    under "1/h" holds back one unit, not one hour, when the limit becomes "100/s". Its units count
    by the old definition until the limit changed, and from then on as if they had been taken at
    that moment. If the limit changed more than once since, nothing counts as paid off between these
    changes: too little may be admitted, never too much.

    Who reads a state after the clock has stepped back must keep the result, or the time that was
    forgiven would have to pass anyway.
    """
    limit, since = definition.limit, definition.since
    kind = STATES[limit.algorithm]
    if state is None:
        return kind.empty(limit, since), False
    if type(state) is kind and state.since == since and state.is_of(limit):
        back = is_ahead(state.written(), now)
        return (state.moved_back(limit, now), True) if back else (state, False)
    before = since if state.since == definition.old_since else definition.old_since
    in_use = min(state.in_use(min(before, now)), limit.burst * MILLION)
    empty, at = kind.empty(limit, since), min(since, now)
    return empty.take(limit, in_use, at, at) if in_use else empty, now < since


class Look(NamedTuple):
    """One limit at the time of a decision, and the cost that is asked of it."""

    ref: LimitRef
    limit: Limit
    state: State
    cost: int

    def delay(self, now: int) -> int:
        """Microseconds until what is taken now may start."""
        return self.state.delay(now) if isinstance(self.state, LeakyQueue) else 0

    def taken(self, now: int) -> Look:
        """The same once the cost is taken."""
        return self._replace(state=self.state.take(self.limit, self.cost, now, now))


class Take(NamedTuple):
    """What was taken of one limit: its mark, its cost, and the definition's time."""

    mark: int
    cost: int
    since: int


Reservation = Mapping[LimitRef, Take]


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
        if ref in self._states:
            self._states[ref], _ = current(definition, self._states[ref], now)

    def reset(self, ref: LimitRef) -> None:
        """Forget what was used of one limit and key."""
        self._states.pop(ref, None)

    def acquire(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Take the cost of each limit from it, or nothing from any.

        Raises:
            CostError: a cost can never pass.
            UnknownLimitError: a limit is not defined.
        """
        return self._decide(costs, now)

    def peek(self, costs: Mapping[LimitRef, Cost], now: int) -> Decision:
        """Return the decision :meth:`acquire` would give, with nothing taken. Costs may be 0."""
        return self._decide(costs, now, take=False)

    def acquire_up_to(self, refs: Iterable[LimitRef], most: Cost, now: int) -> Decision:
        """Take what all limits have, at most so many units; whole units, if that is whole."""
        wanted = millionths(most, allow_zero=True)
        looks = [self._look(ref, wanted, now) for ref in refs]
        granted = min(wanted, *(look.state.left(look.limit, now)[0] for look in looks))
        if wanted % MILLION == 0:
            granted -= granted % MILLION
        # Nothing to be had is a refusal of one unit.
        least = min(wanted, MILLION)
        looks = [look._replace(cost=granted or least) for look in looks]
        return self._decided(looks, now, take=wanted > 0)

    def reserve(self, costs: Mapping[LimitRef, Cost], now: int) -> Reservation | None:
        """Take an estimate, to :meth:`settle` it when the cost is known. None: refused."""
        if not self._decide(costs, now):
            return None
        return {
            ref: Take(self._states[ref].mark(), millionths(cost), self._states[ref].since)
            for ref, cost in costs.items()
        }

    def settle(self, reservation: Reservation, actual: Mapping[LimitRef, Cost], now: int) -> None:
        """Give back what was reserved too much, or owe what was reserved too little.

        If a limit has changed since, nothing is given back.
        """
        for ref, take in reservation.items():
            cost = millionths(actual[ref], allow_zero=True)
            look = self._look(ref, 0, now)
            if cost > take.cost or (cost < take.cost and look.state.since == take.since):
                self._states[ref] = look.state.settle(look.limit, take.mark, take.cost, cost, now)

    def _decide(self, costs: Mapping[LimitRef, Cost], now: int, *, take: bool = True) -> Decision:
        if not costs:
            raise LimitValueError("no limit was named; allowed: one or more")
        for ref, cost in costs.items():
            self._defined(ref).limit.check_cost(cost, ref.name, allow_zero=not take)
        looks = [
            self._look(ref, millionths(cost, allow_zero=not take), now)
            for ref, cost in costs.items()
        ]
        return self._decided(looks, now, take=take)

    def _decided(self, looks: Sequence[Look], now: int, *, take: bool = True) -> Decision:
        waits = [look.state.wait(look.limit, look.cost, now) for look in looks]
        wait = max(waits)
        delay = max(look.delay(now) for look in looks) if wait == 0 else 0
        if wait == 0 and take:
            looks = [look.taken(now) for look in looks]
            self._states.update((look.ref, look.state) for look in looks)
        left = [look.state.left(look.limit, now) for look in looks]
        units = [amount // MILLION for amount, _ in left]
        told = waits.index(wait) if wait else units.index(min(units))
        return Decision(
            allowed=wait == 0,
            limit=looks[told].limit.burst,
            remaining=units[told],
            retry_after=wait / _MICROSECONDS,
            reset_after=max(reset for _, reset in left) / _MICROSECONDS,
            bound_by=looks[told].ref.name if wait else None,
            granted=in_units(looks[0].cost) if wait == 0 and take else 0,
            delay=delay / _MICROSECONDS,
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

    def _look(self, ref: LimitRef, cost: int, now: int) -> Look:
        definition = self._defined(ref)
        state, keep = current(definition, self._states.get(ref), now)
        if keep:
            self._states[ref] = state
        return Look(ref, definition.limit, state, cost)
