"""Plans that read the definitions in force, and what a change of limits would mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import ENDLESS_US, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.reader import read_all_lines, read_some_lines
from celery_throttle.observe.forecasts.solver import (
    WaitingLine,
    competing_lines,
    needs_limit,
    solve,
)
from celery_throttle.observe.forecasts.states import (
    Availability,
    filled_state,
    read_states,
    unused_state,
)
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.stored import list_keys, read_names, read_stored
from celery_throttle.observe.values import Preview
from celery_throttle.observe.waiting import MAX_LINES, measure_waiting
from celery_throttle.operations.define import read_definitions
from celery_throttle.operations.plan import Plan, batches
from celery_throttle.store import definitions

#: Keys, or definitions, that one call reads.
_PAGE_SIZE = 1000

#: Returns the state of a limit, or of one key of it, after a change at a time in microseconds.
_Change = Callable[[LimitRef, Availability, int], Availability]


class Definitions(NamedTuple):
    """The limits, and the weights other than the default, of names and keys."""

    limits: dict[LimitRef, Sequence[Limit]]
    weights: dict[LimitRef, int]


def definitions_in_force(observer: Observer) -> Plan[Definitions]:
    """Return the limits, and the weights other than the default, of all names and keys."""
    limits: dict[LimitRef, Sequence[Limit]] = {}
    weights: dict[LimitRef, int] = {}
    for name in (yield from read_names(observer)):
        whole = LimitRef(name, None)
        refs = [whole, *(yield from _own_refs(observer, name))]
        statuses = yield from read_stored(observer, refs)
        limits.update({whole: observer.limits[name]} if name in observer.limits else {})
        limits.update((yield from _own_definitions(observer, refs)))
        for ref, status in zip(refs, statuses, strict=True):
            default = 1 if ref == whole else statuses[0].weight
            if status.weight != default:
                weights[ref] = status.weight
    return Definitions(limits, weights)


def limits_below(observer: Observer, ref: LimitRef) -> Plan[Sequence[Limit]]:
    """Return what is in force after ``undefine``; nothing if nothing is.

    For a key, that is the definition of its name if neither the rules file nor the code has one
    for the key.
    """
    rules, code = yield from _read_layers(observer, ref)
    (status,) = yield from read_stored(observer, [ref])
    if status.origin is not None and status.origin.layer == "code" and status.weight == 1:
        code = None  # what the code of this process does not have is removed
    return tuple((yield from _unpack_or_default(observer, rules or code, ref)))


def limits_below_rules(observer: Observer, ref: LimitRef) -> Plan[Sequence[Limit] | None]:
    """Return what is in force if the rules file no longer defines a limit or key.

    None: what it has defined has no effect, as a definition of run time is in force.
    """
    (status,) = yield from read_stored(observer, [ref])
    if status.origin is not None and status.origin.layer == "run time":
        return None
    _, code = yield from _read_layers(observer, ref)
    return tuple((yield from _unpack_or_default(observer, code, ref)))


def _read_layers(observer: Observer, ref: LimitRef) -> Plan[Sequence[bytes | None]]:
    """Return what the rules file and the code define, as text."""
    found: Sequence[bytes | None] = yield observer.call(
        "read_layers", [observer.keys.limits], observer.keys.field(ref)
    )
    return found


def _unpack_or_default(
    observer: Observer, packed: bytes | None, ref: LimitRef
) -> Plan[Sequence[Limit]]:
    """Return the limits of a definition; without one, those of the code or of the name."""
    if packed:
        return definitions.unpack(packed)
    if ref.key is None:
        return observer.limits.get(ref.name, ())
    name = LimitRef(ref.name, None)
    return (yield from _own_definitions(observer, [name])).get(name, ())


def _own_refs(observer: Observer, name: str) -> Plan[list[LimitRef]]:
    """Return the keys of a limit that have their own definition or weight."""
    refs: list[LimitRef] = []
    while True:
        total, found = yield from list_keys(observer, name, "own", len(refs), _PAGE_SIZE)
        refs += [LimitRef(name, key) for key, _ in found]
        if not found or len(refs) >= total:
            return refs


def _own_definitions(
    observer: Observer, refs: Sequence[LimitRef]
) -> Plan[dict[LimitRef, Sequence[Limit]]]:
    """Return the limits in force of those names and keys that have their own."""
    found: dict[LimitRef, Sequence[Limit]] = {}
    for page in batches(refs, _PAGE_SIZE):
        texts = yield from read_definitions(observer, map(observer.keys.field, page))
        found |= {
            ref: definitions.unpack(text) for ref, text in zip(page, texts, strict=True) if text
        }
    return found


def preview_pause(observer: Observer, ref: LimitRef | None, seconds: float | None) -> Plan[Preview]:
    """Return the preview of a pause of a limit, or of all limits.

    ``seconds`` None: until it is resumed.
    """
    refs = yield from _refs(observer, ref)
    us = ENDLESS_US if seconds is None else to_us(seconds)

    def pause(_: LimitRef, old: Availability, __: int) -> Availability:
        return old._replace(paused=max(old.paused, us))

    return (yield from _preview(observer, refs, pause))


def preview_resume(observer: Observer, ref: LimitRef | None) -> Plan[Preview]:
    """Return the preview of the end of a pause of a limit, or of all limits."""
    refs = yield from _refs(observer, ref)
    return (yield from _preview(observer, refs, lambda _, old, __: old, lifts=True))


def _refs(observer: Observer, ref: LimitRef | None) -> Plan[list[LimitRef]]:
    """Return a limit as a list; those of all names instead of None."""
    if ref is not None:
        return [ref]
    return [LimitRef(name, None) for name in (yield from read_names(observer))]


def preview_reset(observer: Observer, ref: LimitRef) -> Plan[Preview]:
    """Return the preview of a reset."""

    def reset(one: LimitRef, old: Availability, _: int) -> Availability:
        return old._replace(states=[*map(unused_state, old.limits)]) if one == ref else old

    return (yield from _preview(observer, [ref], reset, lifts=True))


def preview_definition(observer: Observer, ref: LimitRef, limits: Sequence[Limit]) -> Plan[Preview]:
    """Return the preview of a definition; keys with their own definition keep it."""
    refs = yield from _own_refs(observer, ref.name)
    defined = yield from _own_definitions(observer, refs)

    def define(one: LimitRef, old: Availability, now: int) -> Availability:
        return old if one in defined and one != ref else _converted(old, limits, now)

    return (yield from _preview(observer, [ref], define))


def _preview(
    observer: Observer, refs: Sequence[LimitRef], change: _Change, *, lifts: bool = False
) -> Plan[Preview]:
    """Forecast the start of the last task that waits for limits, as they are and changed.

    A change of a limit changes all its keys. ``lifts``: it also lifts the pauses of these limits
    and keys, but no others.
    """
    found = yield from read_all_lines(observer, MAX_LINES)
    for waiting_there in () if found.are_all else (yield from measure_waiting(observer, refs)):
        found.lines.update((yield from read_some_lines(observer, waiting_there)))
    filters = [needs_limit(ref) for ref in refs]

    def needs_any(line: WaitingLine) -> bool:
        return any(needs(line) for needs in filters)

    competing = competing_lines(found.lines.values(), needs_any)
    states = yield from read_states(observer, {ref for line in competing for ref in line.costs})
    affected = [ref for ref in states if {ref, LimitRef(ref.name, None)} & {*refs}]
    changed = {**states, **{ref: change(ref, states[ref], found.now) for ref in affected}}
    if lifts:
        paused = [ref for ref in affected if states[ref].paused]
        kept = yield from _read_other_pauses(observer, paused, refs)
        changed |= {ref: changed[ref]._replace(paused=us) for ref, us in kept.items()}
    before, after = (
        solve(
            competing,
            needs_any,
            {ref: some[ref].capacities(ref.name, found.now) for ref in some},
            found.now,
            are_all=found.are_all,
        )
        for some in (states, changed)
    )
    waiting = before.waiting
    if not found.are_all:
        stored = yield from read_stored(observer, refs)
        waiting = max(waiting, sum(status.waiting for status in stored))
    return Preview(waiting, before, after)


def _read_other_pauses(
    observer: Observer, refs: Sequence[LimitRef], lifted: Sequence[LimitRef]
) -> Plan[dict[LimitRef, int]]:
    """Return for how long (us) limits and keys stay paused once the pauses of some are lifted.

    The pause of a limit is also one of its keys, and independent of their own.
    """
    statuses = yield from read_stored(observer, refs)
    kept: dict[LimitRef, int] = dict.fromkeys(refs, 0)
    for ref, status in zip(refs, statuses, strict=True):
        for pause in status.pauses:
            if LimitRef(pause.limit, pause.key) not in lifted:
                us = ENDLESS_US if pause.until is None else to_us(pause.seconds)
                kept[ref] = max(kept[ref], us)
    return kept


def _converted(old: Availability, limits: Sequence[Limit], now: int) -> Availability:
    """Return the state under other limits: units in use stay in use, and drain at the new rate.

    Each clause adopts the units of the clause with the same index, or the most of any.
    """
    in_use = [
        limit.burst * MILLION - state.amount
        for limit, state in zip(old.limits, old.states, strict=True)
        if not has_slots(limit)
    ]
    amounts = iter(in_use)
    states = [
        unused_state(limit)
        if has_slots(limit)
        else filled_state(limit, next(amounts, max(in_use, default=0)), now)
        for limit in limits
    ]
    return Availability(limits, old.paused, states)
