"""Definitions: the limits of a name in force, and how they adopt states written before them.

Twin: ``definition.lua``, and ``convert_state.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.meters import LeakyQueue, Meter
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import State, is_ahead
from celery_throttle.algorithms.windows import FixedWindow, SlidingLog, SlidingWindow
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.grammar import ADAPTIVE, CLAUSES
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.limits.rate import Rate

#: The class of the state of each algorithm.
STATE_CLASSES: Mapping[str, type[State]] = {
    "gcra": Meter,
    "token-bucket": Meter,
    "leaky-bucket": Meter,
    "leaky-queue": LeakyQueue,
    "fixed-window": FixedWindow,
    "sliding-log": SlidingLog,
    "sliding-window": SlidingWindow,
    "concurrency": Slots,
    "adaptive": Adaptive,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """The limits of a name, and when (us) they and the definition before came into force.

    ``old_since`` equals ``since`` if there was no definition before.
    """

    limits: Limits
    since: int
    old_since: int

    def replace_limits(self, limits: Limits, now: int) -> Definition:
        """Return the definition that replaces this one."""
        if [*map(decisive_fields, limits)] == [*map(decisive_fields, self.limits)]:
            return replace(self, limits=limits)
        return Definition(limits, now, self.since)


def decisive_fields(limit: Limit) -> tuple[object, ...]:
    """Return fields that are equal for limits that make the same decisions.

    ``"60/m"`` and ``"1/s"`` with the same burst are such limits for GCRA.
    """
    window = isinstance(limit.rate, Rate) and "burst" not in CLAUSES[limit.algorithm]
    period = limit.rate.period_us if window and isinstance(limit.rate, Rate) else None
    lowest = limit.lowest_share if limit.algorithm == ADAPTIVE else limit.lowest
    bounds = (lowest, limit.latency_us or 0) if limit.is_adaptive else ()
    kind = limit.algorithm, limit.window, limit.parts, limit.oldest
    return *kind, *bounds, limit.burst, limit.ticks, period


States = tuple[State, ...]


def adopt(definition: Definition, states: States | None, now: int) -> tuple[States, bool]:
    """Return the states under a definition, and whether to store them even if nothing is taken.

    A state that was written under another definition keeps its units, not its time: one unit used
    under "1/h" leaves one unit in use, not one hour, when the limit becomes "100/s". The units
    drain by the old definition until it was replaced; then they count as taken at that moment. If
    the definition was replaced more than once since, no units drain until the last of the changes:
    what drained by the definitions between them is unknown. So too little may be admitted, never
    too much. Of several limits each adopts the units of the limit with the same index, or the most
    of any. Slots in use stay in use, and a learned number of them is kept, within its new range.

    If the clock has been set back, the result must be stored: otherwise the time that was skipped
    would have to pass in the end.
    """
    limits, since = definition.limits, definition.since
    kinds = [STATE_CLASSES[limit.algorithm] for limit in limits]
    if states is None:
        return tuple(
            kind.empty(limit, since) for kind, limit in zip(kinds, limits, strict=True)
        ), False
    if [type(state) for state in states] == kinds and all(
        state.since == since and state.matches(limit)
        for state, limit in zip(states, limits, strict=True)
    ):
        ahead = [is_ahead(state.latest_time(), now) for state in states]
        rebased = (
            state.rebase(limit, now) if set_back else state
            for state, limit, set_back in zip(states, limits, ahead, strict=True)
        )
        return tuple(rebased), any(ahead)
    written_since = states[0].since
    replaced = since if written_since == definition.old_since else written_since
    converted = _convert(definition, states, replaced, now)
    ahead = [isinstance(state, Slots) and is_ahead(state.latest_time(), now) for state in states]
    return converted, any(ahead) or now < max(since, replaced)


def _convert(definition: Definition, states: States, replaced: int, now: int) -> States:
    """Return the states for a definition, of states of another one."""
    since = definition.since
    slots = next((state for state in states if isinstance(state, Slots)), None)
    found = [state.in_use(min(replaced, now)) for state in states if not isinstance(state, Slots)]
    converted: list[State] = []
    amounts = iter(found)
    for limit in definition.limits:
        state = STATE_CLASSES[limit.algorithm].empty(limit, since)
        if isinstance(state, Slots):
            kept = slots.follow_clock(now).follow_limit(limit) if slots else state
            converted.append(replace(kept, since=since))
            continue
        in_use = min(next(amounts, max(found, default=0)), limit.burst * MILLION)
        converted.append(state.fill(limit, in_use, min(since, now)))
    return tuple(converted)
