"""What a change of limits would mean for the tasks that wait, computed before it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from celery_throttle.forecasts.capacity import LimitsState, LimitState
from celery_throttle.forecasts.reader import with_known_limits
from celery_throttle.forecasts.solver import LineFilter, competing_lines, needs_limit, solve
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import ENDLESS_US, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.observe.definitions import DefinitionReader
from celery_throttle.observe.reader import MAX_LINES
from celery_throttle.observe.values import Preview
from celery_throttle.operations.plan import Plan

#: The state of a limit of which nothing is in use, but for its units.
_UNUSED = LimitState(amount=0, full=0, wait=0, share=MILLION)


class ChangedLimit(NamedTuple):
    """A change of a limit, or of one key of it."""

    ref: LimitRef
    #: Returns the state after the change, of the limit or of a key of it.
    apply: Callable[[LimitRef, LimitsState], LimitsState]


class PreviewReader(DefinitionReader):
    """Computes previews of changes."""

    __slots__ = ()

    def preview_pause(self, refs: Sequence[LimitRef], seconds: float | None) -> Plan[Preview]:
        """Return the preview of a pause; ``seconds`` None: until it is resumed."""
        us = ENDLESS_US if seconds is None else to_us(seconds)
        return (
            yield from self._preview(
                [
                    ChangedLimit(ref, lambda _, old: _paused(old, max(old.paused, us)))
                    for ref in refs
                ]
            )
        )

    def preview_resume(self, refs: Sequence[LimitRef]) -> Plan[Preview]:
        """Return the preview of the end of a pause."""
        return (
            yield from self._preview(
                [ChangedLimit(ref, lambda _, old: _paused(old, 0)) for ref in refs]
            )
        )

    def preview_reset(self, ref: LimitRef) -> Plan[Preview]:
        """Return the preview of a reset."""

        def reset(one: LimitRef, old: LimitsState) -> LimitsState:
            unused = [_unused(limit) for limit in old.limits] if one == ref else old.states
            return LimitsState(old.limits, 0, unused)

        return (yield from self._preview([ChangedLimit(ref, reset)]))

    def preview_definition(self, ref: LimitRef, limits: Sequence[Limit]) -> Plan[Preview]:
        """Return the preview of a definition; keys with their own definition keep it."""
        defined = (yield from self.own_definitions((yield from self._own_refs(ref.name)))).keys()

        def define(one: LimitRef, old: LimitsState) -> LimitsState:
            return old if one in defined and one != ref else _converted(old, limits)

        return (yield from self._preview([ChangedLimit(ref, define)]))

    def _preview(self, changes: Sequence[ChangedLimit]) -> Plan[Preview]:
        """Forecast the start of the last task that waits for a limit, as it is and with changes."""
        now, lines = yield from self._all_lines(MAX_LINES)
        if lines is None:
            found = yield from self._read([change.ref for change in changes])
            return Preview(sum(status.waiting for status in found), None, None)
        matches = _needs_any([change.ref for change in changes])
        competing = competing_lines(lines, matches)
        states = yield from self._states({ref for line in competing for ref in line.costs})
        known = with_known_limits(competing, states)
        before, after = (
            solve(known, matches, {ref: some[ref].capacities(ref.name, now) for ref in some}, now)
            for some in (states, _changed(states, changes))
        )
        return Preview(before.waiting, before, after)


def _needs_any(refs: Sequence[LimitRef]) -> LineFilter:
    filters = [needs_limit(ref) for ref in refs]
    return lambda line: any(one(line) for one in filters)


def _changed(
    states: Mapping[LimitRef, LimitsState], changes: Sequence[ChangedLimit]
) -> dict[LimitRef, LimitsState]:
    """Return the states after the changes. A change of a limit changes all its keys."""
    by_ref = {change.ref: change for change in changes}
    found = {}
    for ref, state in states.items():
        change = by_ref.get(ref) or by_ref.get(LimitRef(ref.name, None))
        found[ref] = change.apply(ref, state) if change else state
    return found


def _paused(state: LimitsState, us: int) -> LimitsState:
    return state._replace(paused=us)


def _unused(limit: Limit) -> LimitState:
    return _UNUSED._replace(amount=limit.burst * MILLION)


def _converted(old: LimitsState, limits: Sequence[Limit]) -> LimitsState:
    """Return the state under other limits: units in use stay in use, and drain at the new rate."""
    strictest = max(zip(old.limits, old.states, strict=True), key=lambda pair: pair[1].full)
    return LimitsState(limits, old.paused, [_convert(*strictest, limit) for limit in limits])


def _convert(old: Limit, state: LimitState, new: Limit) -> LimitState:
    if not isinstance(old.rate, Rate) or not isinstance(new.rate, Rate):
        return _unused(new)
    slower = (new.rate.period_us * old.rate.count) / (new.rate.count * old.rate.period_us)
    left = new.burst * MILLION - (old.burst * MILLION - state.amount)
    return LimitState(
        amount=max(0, left),
        full=round(state.full * slower),
        wait=round(state.wait * slower) if left < MILLION else 0,
        share=MILLION,
    )
