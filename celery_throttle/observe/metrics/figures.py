"""The figures of all limits for monitoring, and the plan that reads them.

The work is bounded by the number of limits: it does not grow with keys, lines or tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import UNLIMITED
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.reader import forecast_lines, read_all_lines
from celery_throttle.observe.forecasts.solver import needs_limit
from celery_throttle.observe.forecasts.states import Availability, read_states
from celery_throttle.observe.merged import merge, merge_limits
from celery_throttle.observe.observer import Observer, find_highest, merge_fields
from celery_throttle.observe.status.fleet import find_stranded, read_fleet, read_rules_status
from celery_throttle.observe.status.runnable import read_overdue
from celery_throttle.observe.status.stored import (
    NAMES_OF_A_CALL,
    estimate_seconds,
    limits_in_force,
    read_names,
    read_stored,
)
from celery_throttle.observe.values import LimitStatus, Stranded
from celery_throttle.operations.plan import Plan, batches

#: Lines that are looked at of all limits together, and of each limit at least and at most.
_MAX_LINES, _MIN_LINES_OF_A_LIMIT, _MAX_LINES_OF_A_LIMIT = 10_000, 10, 400

#: Lines of several limits that one script looks at. Calls follow each other, and what others ask of
#: the server meanwhile waits for one of them: each should take a fraction of a millisecond.
_LINES_OF_A_CALL = 30

#: Lines up to which forecasts look at each line; with more, they go by the rates alone.
_MAX_FORECAST_LINES = 200


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """The figures of one limit, with all its keys together; see ``docs/reference/metrics.md``."""

    status: LimitStatus  #: what is stored of it
    rate: float | None  #: units per second, adaptive shares included; with keys, of each key
    slots_in_force: int | None  #: learned numbers of adaptive slots included; as for the rate
    slots: int | None  #: in use without a key, and by the keys with the most waiting tasks
    oldest: float | None  #: seconds; None if no task waits
    forecast: float | None  #: seconds; None if it is unknown, or no task waits
    next_due: float | None  #: seconds, infinity for never; None if no task waits


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a shard. By default those of one that does not answer."""

    up: bool = False
    limits: tuple[LimitFigures, ...] = ()  #: in the order of their names
    omitted: int | None = None  #: limits that were left out
    #: By queue, the tasks that could start at once if there were free processes.
    runnable: Mapping[str, int] = field(default_factory=dict)
    workers: int | None = None
    stranded: tuple[Stranded, ...] = ()
    outage_seconds: float | None = None  #: summed over workers
    rules_valid: bool | None = None  #: None if no rules file was ever used


class _Measured(NamedTuple):
    """A row of ``measure_limits.lua``. Times are in microseconds."""

    slots: int
    tasks_of_a_key: int  #: of the key that has most
    oldest: int  #: -1 if no task waits
    next_due: int  #: -1 if nobody knows
    due: Sequence[bytes]  #: the keys of the queues in which tasks wait


def merge_figures(shards: Sequence[Figures]) -> Figures:
    """Return the figures of shards among which one setting divides the keys of its limits."""
    if len(shards) == 1:
        return shards[0]
    if not all(one.up for one in shards):
        return Figures()
    return merge_fields(
        shards,
        limits=_merge_lists,
        omitted=max,
        runnable=merge,
        workers=max,
        stranded=lambda found: tuple(chain(*found)),
        outage_seconds=sum,
        # A worker with mistakes in its file may have reported them to some shards so far.
        rules_valid=lambda found: None if {*found} == {None} else False not in found,
    )


def _merge_lists(lists: Sequence[Sequence[LimitFigures]]) -> tuple[LimitFigures, ...]:
    by_name: dict[str, list[LimitFigures]] = {}
    for limit in chain(*lists):
        by_name.setdefault(limit.status.name, []).append(limit)
    return tuple(_merge_limit(by_name[name]) for name in sorted(by_name))


def _merge_limit(parts: Sequence[LimitFigures]) -> LimitFigures:
    slots = [one.slots for one in parts if one.slots is not None]
    forecasts = [one.forecast for one in parts if one.status.waiting]
    due = [one.next_due for one in parts if one.next_due is not None]
    return replace(
        merge_fields(parts, status=merge_limits, oldest=find_highest),
        slots=sum(slots) if slots else None,
        forecast=None if None in forecasts else find_highest(forecasts),
        next_due=min(due, default=None),
    )


def read_figures(observer: Observer, most: int) -> Plan[Figures]:
    """Return the figures of the limits, at most so many of them."""
    fleet = yield from read_fleet(observer)
    names = yield from read_names(observer)
    statuses = yield from read_stored(observer, [LimitRef(name, None) for name in names[:most]])
    measured = yield from _measure_limits(observer, statuses)
    waits: dict[str, float] = {}  # of the queues, the longest at a limit of one of their tasks
    head = observer.keys.queue("").due
    for one in measured:
        for queue in (due.decode().removeprefix(head) for due in one.due):
            waits[queue] = max(waits.get(queue, 0.0), one.oldest / MICROSECONDS)
    queues = sorted(fleet.consumed.keys() | waits.keys())[:most]
    refs = [
        LimitRef(status.name, None)
        for status in statuses
        if any(limit.is_adaptive for limit in limits_in_force(status))
    ]
    adaptive = yield from read_states(observer, refs)
    forecasts = yield from _read_forecasts(observer, statuses, measured, queues)
    overdue = yield from read_overdue(observer, queues)
    rules = yield from read_rules_status(observer)
    return Figures(
        up=True,
        limits=tuple(
            _read_figures(status, one, adaptive.get(LimitRef(status.name, None)), forecast)
            for status, one, forecast in zip(statuses, measured, forecasts, strict=True)
        ),
        omitted=len(names) - len(statuses),
        runnable={queue: overdue.count_runnable([queue]).total() for queue in queues},
        workers=fleet.workers,
        stranded=(yield from find_stranded(observer, fleet, waits, statuses)),
        outage_seconds=fleet.outage_seconds,
        rules_valid=None if rules is None else not any(one.error for one in rules.others),
    )


def _measure_limits(observer: Observer, statuses: Sequence[LimitStatus]) -> Plan[list[_Measured]]:
    keys, head = observer.keys, LimitRef("", None)
    lines = _MAX_LINES // max(1, len(statuses))
    lines = min(_MAX_LINES_OF_A_LIMIT, max(_MIN_LINES_OF_A_LIMIT, lines))
    heads = [keys.waiting_lists(head), keys.entries(head), keys.totals()]
    step = max(1, min(NAMES_OF_A_CALL, _LINES_OF_A_CALL // lines))
    found: list[_Measured] = []
    for some in batches(statuses, step):
        args: list[str] = []
        for status in some:
            args += [status.name, "1" if any(map(has_slots, limits_in_force(status))) else ""]
        rows = yield observer.call("measure_limits", heads, lines, *args)
        found += (_Measured(*row) for row in rows)
    return found


def _read_forecasts(
    observer: Observer,
    statuses: Sequence[LimitStatus],
    measured: Sequence[_Measured],
    queues: Sequence[str],
) -> Plan[list[float | None]]:
    """Return the forecast of each limit in seconds."""
    refs = [LimitRef(status.name, None) for status in statuses if status.waiting]
    if not refs:
        return [None] * len(statuses)
    found = yield from read_all_lines(observer, _MAX_FORECAST_LINES, queues)
    if found.are_all:
        filters = {ref.name: needs_limit(ref) for ref in refs}
        forecasts = yield from forecast_lines(observer, found, filters)
        seconds = {name: forecast.seconds for name, forecast in forecasts.items()}
        return [seconds.get(status.name) for status in statuses]
    return [
        estimate_seconds(status, one.tasks_of_a_key or status.waiting)
        for status, one in zip(statuses, measured, strict=True)
    ]


def _read_figures(
    status: LimitStatus,
    measured: _Measured,
    adaptive: Availability | None,
    forecast: float | None,
) -> LimitFigures:
    limits, waits = adaptive.limits if adaptive else limits_in_force(status), status.waiting > 0
    shares = [state.share for state in adaptive.states] if adaptive else [MILLION] * len(limits)
    rates = [
        limit.rate.per_second * share / MILLION
        for limit, share in zip(limits, shares, strict=True)
        if isinstance(limit.rate, Rate) and replace(limit, shadows=()) != UNLIMITED
    ]
    slots = [
        limit.burst * share // MILLION
        for limit, share in zip(limits, shares, strict=True)
        if has_slots(limit)
    ]
    oldest, next_due = measured.oldest, measured.next_due
    return LimitFigures(
        status,
        rate=min(rates, default=None),
        slots_in_force=min(slots, default=None),
        slots=measured.slots if any(map(has_slots, limits)) else None,
        oldest=oldest / MICROSECONDS if waits and oldest >= 0 else None,
        forecast=forecast,
        next_due=pause_to_seconds(next_due) if waits and next_due >= 0 else None,
    )
