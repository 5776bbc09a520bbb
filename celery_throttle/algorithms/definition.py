"""The limits of a name in force, and what states are worth under them.

Twin: ``definition.lua``, and ``convert_state.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.meters import Gcra, LeakyBucket, LeakyQueue, TokenBucket
from celery_throttle.algorithms.sliding_log import SlidingLog
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import State, is_ahead
from celery_throttle.algorithms.windows import FixedWindow, SlidingWindow
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import ADAPTIVE, CLAUSES
from celery_throttle.limits.limit import Limit, strictest
from celery_throttle.limits.rate import Rate

STATES: Mapping[str, type[State]] = {
    "gcra": Gcra,
    "token-bucket": TokenBucket,
    "leaky-bucket": LeakyBucket,
    "leaky-queue": LeakyQueue,
    "fixed-window": FixedWindow,
    "sliding-log": SlidingLog,
    "sliding-window": SlidingWindow,
    "concurrency": Slots,
    "adaptive": Adaptive,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """The limits of a name in force, and what it takes to read states that were written before.

    Attributes:
        limits: All of them have to allow.
        since: When they came into force, in microseconds.
        old_since: When those before came into force; as ``since`` if there were none.
        older_since: When those before them did.
    """

    limits: tuple[Limit, ...]
    since: int
    old_since: int
    older_since: int

    def followed_by(self, limits: tuple[Limit, ...], now: int) -> Definition:
        """Return the definition that takes the place of this one."""
        same = [*map(numbers, limits)] == [*map(numbers, self.limits)]
        if same:
            return replace(self, limits=limits)
        return Definition(limits, now, self.since, self.old_since)

    @property
    def max_keys(self) -> int | None:
        """How many keys may be in use."""
        return strictest(limit.max_keys for limit in self.limits)


def numbers(limit: Limit) -> tuple[object, ...]:
    """What two limits have in common that admit the same, however their rates are written."""
    window = isinstance(limit.rate, Rate) and "burst" not in CLAUSES[limit.algorithm]
    period = limit.rate.period_us if window and isinstance(limit.rate, Rate) else None
    bounds = (limit.floor, limit.latency_us or 0) if limit.algorithm == ADAPTIVE else ()
    kind = limit.algorithm, limit.window, limit.parts, limit.oldest
    return *kind, *bounds, limit.burst, limit.ticks, period


States = tuple[State, ...]


def current(definition: Definition, states: States | None, now: int) -> tuple[States, bool]:
    """Return the states under a definition, and whether to keep them even if nothing is taken.

    What was written under another definition keeps its units, not its time: one unit used under
    "1/h" holds back one unit, not one hour, when the limit becomes "100/s". Its units count by the
    old definition until that changed, and from then on as if they had been taken at that moment. If
    it changed twice since, nothing counts as paid off between these changes, and if more often,
    nothing since they were taken: too little may be admitted, never too much. Of several limits
    each goes on with the units of the one in its place, or with the most of any. Slots in use stay
    in use.

    Who reads a state after the clock has stepped back must keep the result, or the time that was
    forgiven would have to pass anyway.
    """
    limits, since = definition.limits, definition.since
    kinds = [STATES[limit.algorithm] for limit in limits]
    if states is None:
        return tuple(
            kind.empty(limit, since) for kind, limit in zip(kinds, limits, strict=True)
        ), False
    if [type(state) for state in states] == kinds and all(
        state.since == since and state.is_of(limit)
        for state, limit in zip(states, limits, strict=True)
    ):
        back = [is_ahead(state.written(), now) for state in states]
        moved = (
            state.moved_back(limit, now) if ahead else state
            for state, limit, ahead in zip(states, limits, back, strict=True)
        )
        return tuple(moved), any(back)
    before = _counts_until(definition, states[0].since)
    carried = _carried_over(definition, states, before, now)
    back = [isinstance(state, Slots) and is_ahead(state.written(), now) for state in states]
    return carried, any(back) or now < max(since, before)


def _counts_until(definition: Definition, written_since: int) -> int:
    """When the definition changed under which a state was written, as far as that is known."""
    if written_since == definition.old_since:
        return definition.since
    if written_since == definition.older_since:
        return definition.old_since
    return written_since


def _carried_over(definition: Definition, states: States, before: int, now: int) -> States:
    since = definition.since
    held = next((state for state in states if isinstance(state, Slots)), None)
    found = [state.in_use(min(before, now)) for state in states if not isinstance(state, Slots)]
    carried: list[State] = []
    rest = iter(found)
    for limit in definition.limits:
        state = STATES[limit.algorithm].empty(limit, since)
        if isinstance(state, Slots):
            carried.append(replace(held.follow_clock(now), since=since) if held else state)
            continue
        in_use = min(next(rest, max(found, default=0)), limit.burst * MILLION)
        at = min(since, now)
        carried.append(state.fill(limit, in_use, at))
    return tuple(carried)
