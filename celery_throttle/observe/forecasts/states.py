"""Plans that read what limits can grant now, and the capacities that follow from it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from celery_throttle.algorithms.definition import STATE_CLASSES
from celery_throttle.algorithms.meters import LeakyQueue
from celery_throttle.limits.calendar import Calendar
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, is_endless
from celery_throttle.limits.grammar import FIRST_REQUEST
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency
from celery_throttle.limits.requirement import Requirement
from celery_throttle.observe.forecasts.fluid import Capacity
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.define import read_definitions
from celery_throttle.operations.plan import Plan, batches, has_keys, ref_arguments
from celery_throttle.operations.replies import ReplyStatus
from celery_throttle.store import definitions
from celery_throttle.store.keys import FAN_OUT_NAME

#: Windows that count one by one; after them the capacity is a steady rate.
_MAX_WINDOWS = 100

#: More units than anything takes.
_ANY = 1e12

#: Limits and keys of one call.
_MAX_REFS = 50

_unpack = lru_cache(maxsize=1024)(definitions.unpack)


class ClauseState(NamedTuple):
    """The state of one clause of a limit as ``read_states.lua`` replies it."""

    amount: int  #: units that can pass at once, in millionths
    full: int  #: microseconds until nothing is in use
    wait: int  #: microseconds until one unit can pass
    share: int  #: the current rate, or number of slots, in millionths of the defined one


class Availability(NamedTuple):
    """What a limit, or a key of it, can grant now."""

    limits: Sequence[Limit]  #: in force, one for each clause
    paused: int  #: microseconds
    states: Sequence[ClauseState]  #: of each clause

    def available(self) -> int:
        """Return the units that can pass at once, in millionths; 0 while it is paused.

        Without limits, as of a fan-out, any number can pass.
        """
        if self.paused:
            return 0
        # A leaky queue admits one unit when it is empty; its amount is what may queue there.
        amounts = (
            MILLION * (state.wait == 0) if limit.algorithm == "leaky-queue" else state.amount
            for limit, state in zip(self.limits, self.states, strict=True)
        )
        return max(0, min(amounts, default=sys.maxsize))

    def capacities(self, name: str, now: int) -> list[Capacity | None]:
        """Return the capacity of each clause after the time ``now``; None of one with slots.

        A name without limits, as that of a fan-out, has one while it is paused.
        """
        if is_endless(self.paused):
            return [Capacity(name, 0.0)]
        if not self.limits and self.paused:
            return [Capacity(name, _ANY, _ANY, _ANY, self.paused / MICROSECONDS)]
        return [
            _read_capacity(name, limit, state, self.paused, now)
            for limit, state in zip(self.limits, self.states, strict=True)
        ]


def unused_state(limit: Limit) -> ClauseState:
    """Return the state of a clause of which nothing is in use."""
    return ClauseState(amount=limit.burst * MILLION, full=0, wait=0, share=MILLION)


def filled_state(limit: Limit, in_use: int, now: int) -> ClauseState:
    """Return the state of a clause with a rate that adopts an amount in use, in millionths."""
    state = STATE_CLASSES[limit.algorithm].empty(limit, now)
    state = state.fill(limit, min(in_use, limit.burst * MILLION), now)
    # As read_states.lua: at a leaky queue, a task in a line waits until the queue is empty.
    waits = state.delay(now) if isinstance(state, LeakyQueue) else state.wait(limit, MILLION, now)
    return ClauseState(*state.remaining_and_reset(limit, now), waits, MILLION)


def read_states(observer: Observer, refs: Iterable[LimitRef]) -> Plan[dict[LimitRef, Availability]]:
    """Return what limits and keys can grant, for those that the server or the code defines."""
    found: dict[LimitRef, Availability] = {}
    for batch in batches([*refs], _MAX_REFS):
        states: dict[LimitRef, Availability] | None = None
        while states is None:
            limits = yield from _read_limits(observer, batch)
            states = yield from _read_with_limits(observer, limits)
        found |= states
    return found


def _read_limits(
    observer: Observer, refs: Sequence[LimitRef]
) -> Plan[dict[LimitRef, Sequence[Limit]]]:
    """Return the limits in force, for those that the server or the code defines.

    A fan-out has none, and may be paused nevertheless.
    """
    fields = [field for ref in refs for field in (observer.keys.field(ref), ref.name)]
    packed = yield from read_definitions(observer, fields)
    found: dict[LimitRef, Sequence[Limit]] = {}
    for ref, of_key, of_name in zip(refs, packed[::2], packed[1::2], strict=True):
        if of_key or of_name:
            found[ref] = _unpack(of_key or of_name)
        elif ref.name in observer.limits:
            found[ref] = observer.limits[ref.name]
        elif ref.name == FAN_OUT_NAME:
            found[ref] = ()
    return found


def _read_with_limits(
    observer: Observer, limits: Mapping[LimitRef, Sequence[Limit]]
) -> Plan[dict[LimitRef, Availability] | None]:
    """Return what limits and keys can grant; None if one has got other clauses meanwhile."""
    found = {ref: Availability(own, 0, [*map(unused_state, own)]) for ref, own in limits.items()}
    refs = list(limits)
    while refs:
        requirement = Requirement(tuple(refs), (MILLION,) * len(refs))
        names, args = ref_arguments(observer.keys, requirement)
        names.insert(0, observer.keys.limits)
        status, *rows = yield observer.call("read_states", names, int(has_keys(refs)), *args)
        if status != ReplyStatus.UNKNOWN:
            for ref, (paused, *numbers) in zip(refs, rows, strict=True):
                fours = zip(*[iter(numbers)] * 4, strict=True)
                states = [ClauseState(*four) for four in fours]
                if len(states) != len(limits[ref]):
                    return None
                found[ref] = Availability(limits[ref], paused, states)
            return found
        refs.pop(rows[0] - 1)  # it was never used, or not for so long that its windows have ended
    return found


def _read_capacity(
    name: str, limit: Limit, state: ClauseState, paused: int, now: int
) -> Capacity | None:
    """Return the capacity of a clause; None if it has slots: nobody knows when they are released.

    A window admits its units when it begins, and so does a log of which most was used at once. A
    sliding window, and a log that was filled evenly, admit steadily.
    """
    if isinstance(limit.rate, Concurrency):
        return None
    period = limit.rate.period_us
    per_second = limit.rate.per_second * state.share / MILLION
    stored = state.amount / MILLION
    # Fractions of a unit and owed units count. A leaky queue admits one unit when it is empty.
    if state.wait > 0 or limit.algorithm == "leaky-queue":
        stored = 1 - state.wait / MICROSECONDS * per_second
    windows = [
        (start / MICROSECONDS, units) for start, units in _windows(limit, period, state, now)
    ]
    if windows and state.wait > 0:
        stored = 0.0
    return Capacity(name, per_second, stored, limit.burst, paused / MICROSECONDS, windows)


def _windows(limit: Limit, period: int, state: ClauseState, now: int) -> list[tuple[int, float]]:
    """Return microseconds until each window begins, and its units; none if units pass steadily."""
    if limit.algorithm == "fixed-window":
        return [(start, limit.burst) for start in _window_starts(limit, period, state, now)]
    if limit.algorithm == "sliding-log" and state.full - state.wait < period / 2:
        # Units in use return together; free ones, if used now, a period from now.
        free = state.amount / MILLION
        used = [(start, limit.burst - free) for start in _periods(state.full, period)]
        unused = [(start, free) for start in _periods(period, period)]
        return sorted(window for window in used + unused if window[1] > 0)
    if limit.algorithm == "sliding-window" and state.full == 0:
        # Units used now are in use at least until the next part begins.
        part = period // limit.parts
        return [(part - now % part, 0.0)]
    return []


def _window_starts(limit: Limit, period: int, state: ClauseState, now: int) -> list[int]:
    if isinstance(limit.window, Calendar):
        starts = limit.window.starts(limit.calendar_period or "", now, _MAX_WINDOWS)
        return [start - now for start in starts if start > now]
    if limit.window == FIRST_REQUEST:
        return _periods(state.full or period, period)
    return _periods(period - now % period, period)


def _periods(first: int, period: int) -> list[int]:
    return [first + number * period for number in range(_MAX_WINDOWS)]
