"""What a change of limits would mean for the tasks that wait, computed before it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import ENDLESS_US, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.observe.forecasts.lines import read_all_lines
from celery_throttle.observe.forecasts.solver import LineFilter, competing_lines, needs_limit, solve
from celery_throttle.observe.forecasts.states import (
    Availability,
    ClauseState,
    read_states,
    unused_state,
)
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.definitions import own_definitions, own_refs
from celery_throttle.observe.status.limits import MAX_LINES
from celery_throttle.observe.status.stored import read_stored
from celery_throttle.observe.values import Preview
from celery_throttle.operations.plan import Plan


class ChangedLimit(NamedTuple):
    """A change of a limit, or of one key of it."""

    ref: LimitRef
    #: Returns the state after the change, of the limit or of a key of it.
    apply: Callable[[LimitRef, Availability], Availability]


def preview_pause(
    observer: Observer, refs: Sequence[LimitRef], seconds: float | None
) -> Plan[Preview]:
    """Return the preview of a pause; ``seconds`` None: until it is resumed."""
    us = ENDLESS_US if seconds is None else to_us(seconds)
    changes = [ChangedLimit(ref, lambda _, old: _paused(old, max(old.paused, us))) for ref in refs]
    return (yield from _preview(observer, changes))


def preview_resume(observer: Observer, refs: Sequence[LimitRef]) -> Plan[Preview]:
    """Return the preview of the end of a pause."""
    changes = [ChangedLimit(ref, lambda _, old: _paused(old, 0)) for ref in refs]
    return (yield from _preview(observer, changes))


def preview_reset(observer: Observer, ref: LimitRef) -> Plan[Preview]:
    """Return the preview of a reset."""

    def reset(one: LimitRef, old: Availability) -> Availability:
        unused = [unused_state(limit) for limit in old.limits] if one == ref else old.states
        return Availability(old.limits, 0, unused)

    return (yield from _preview(observer, [ChangedLimit(ref, reset)]))


def preview_definition(observer: Observer, ref: LimitRef, limits: Sequence[Limit]) -> Plan[Preview]:
    """Return the preview of a definition; keys with their own definition keep it."""
    refs = yield from own_refs(observer, ref.name)
    defined = yield from own_definitions(observer, refs)

    def define(one: LimitRef, old: Availability) -> Availability:
        return old if one in defined and one != ref else _converted(old, limits)

    return (yield from _preview(observer, [ChangedLimit(ref, define)]))


def _preview(observer: Observer, changes: Sequence[ChangedLimit]) -> Plan[Preview]:
    """Forecast the start of the last task that waits for a limit, as it is and with changes."""
    now, lines = yield from read_all_lines(observer, MAX_LINES)
    if lines is None:
        found = yield from read_stored(observer, [change.ref for change in changes])
        return Preview(sum(status.waiting for status in found), None, None)
    matches = _needs_any([change.ref for change in changes])
    competing = competing_lines(lines.values(), matches)
    states = yield from read_states(observer, {ref for line in competing for ref in line.costs})
    before, after = (
        solve(competing, matches, {ref: some[ref].capacities(ref.name, now) for ref in some}, now)
        for some in (states, _changed(states, changes))
    )
    return Preview(before.waiting, before, after)


def _needs_any(refs: Sequence[LimitRef]) -> LineFilter:
    filters = [needs_limit(ref) for ref in refs]
    return lambda line: any(one(line) for one in filters)


def _changed(
    states: Mapping[LimitRef, Availability], changes: Sequence[ChangedLimit]
) -> dict[LimitRef, Availability]:
    """Return the states after the changes. A change of a limit changes all its keys."""
    by_ref = {change.ref: change for change in changes}
    found = {}
    for ref, state in states.items():
        change = by_ref.get(ref) or by_ref.get(LimitRef(ref.name, None))
        found[ref] = change.apply(ref, state) if change else state
    return found


def _paused(state: Availability, us: int) -> Availability:
    return state._replace(paused=us)


def _converted(old: Availability, limits: Sequence[Limit]) -> Availability:
    """Return the state under other limits: units in use stay in use, and drain at the new rate."""
    strictest = max(zip(old.limits, old.states, strict=True), key=lambda pair: pair[1].full)
    return Availability(limits, old.paused, [_convert(*strictest, limit) for limit in limits])


def _convert(old: Limit, state: ClauseState, new: Limit) -> ClauseState:
    if not isinstance(old.rate, Rate) or not isinstance(new.rate, Rate):
        return unused_state(new)
    slower = (new.rate.period_us * old.rate.count) / (new.rate.count * old.rate.period_us)
    left = new.burst * MILLION - (old.burst * MILLION - state.amount)
    return ClauseState(
        amount=max(0, left),
        full=round(state.full * slower),
        wait=round(state.wait * slower) if left < MILLION else 0,
        share=MILLION,
    )
