"""The figures of all limits for monitoring, and the plan that reads them.

The work is bounded by the number of limits: it does not grow with keys, lines or tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import UNLIMITED, Limits
from celery_throttle.limits.rate import Rate
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.reader import forecast_limits
from celery_throttle.observe.forecasts.states import read_states
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.fleet import read_fleet, stranded_of
from celery_throttle.observe.status.rules import read_rules_status
from celery_throttle.observe.status.runnable import read_overdue
from celery_throttle.observe.status.stored import (
    NAMES_OF_A_CALL,
    estimate_seconds,
    limits_in_force,
    read_names,
    read_stored,
)
from celery_throttle.observe.values import LimitStatus, Stranded
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: Lines that are looked at of all limits together, and of each limit at least and at most.
_MAX_LINES, _MIN_LINES_OF_A_LIMIT, _MAX_LINES_OF_A_LIMIT = 10_000, 10, 400

#: Lines of several limits that one script looks at. Calls follow each other, and what others ask of
#: the server meanwhile waits for one of them: each should take a fraction of a millisecond.
_LINES_OF_A_CALL = 30

#: Lines up to which forecasts look at each line; with more, they go by the rates alone.
_MAX_FORECAST_LINES = 200


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """The figures of one limit, with all its keys together.

    Attributes:
        status: What is stored of the limit. ``usage`` and ``runnable`` are not read.
        rate: The units per second that it grants over the long run: the least of the rates of its
            clauses, adaptive shares included. With keys, of each key, without adaptive shares. None
            if no clause has a rate.
        slots: The slots in use without a key, and those of the keys with the most waiting tasks: up
            to 400 keys, or 10 with 1,000 limits. None if the limit has no slots.
        oldest: The seconds that the oldest task has waited; None if no task waits. A lower bound if
            tasks of more than 400 lines wait, or of 10 with 1,000 limits.
        forecast: The seconds until the last waiting task has started; None if that is unknown, or
            no task waits. If more than 200 lines wait, an estimate by the rate alone.
        next_due: The seconds until the limit next has room for a waiting task, as the last decision
            found: 0 if it may have room now, infinity if each waiting task is paused without an
            end. None if no task waits. It is of the same lines as ``oldest``.
    """

    status: LimitStatus
    rate: float | None
    slots: int | None
    oldest: float | None
    forecast: float | None
    next_due: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a server.

    Attributes:
        limits: The figures of the limits, in the order of their names.
        omitted: The number of limits that were left out.
        runnable: By queue with its broker, the number of tasks that could start at once if there
            were free processes. It has the queues in which tasks wait. A lower bound if more than
            1,000 lines could start.
        workers: The number of live workers.
        stranded: The waiting tasks that no live worker can start.
        outage_seconds: The seconds that workers spent in outage mode, summed over workers.
        rules_valid: Whether the rules files of all live workers have no mistakes; None if no rules
            file was ever used.
    """

    limits: tuple[LimitFigures, ...]
    omitted: int
    runnable: Mapping[str, int]
    workers: int
    stranded: tuple[Stranded, ...]
    outage_seconds: float
    rules_valid: bool | None


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row of ``measure_limits.lua``."""

    slots: int
    tasks_of_a_key: int  #: of the key that has most
    oldest: float | None
    next_due: float | None
    queues: Sequence[str]


def read_figures(observer: Observer, most: int) -> Plan[Figures]:
    """Return the figures of the limits, at most so many of them."""
    fleet = yield from read_fleet(observer)
    names = yield from read_names(observer)
    statuses = yield from read_stored(observer, [LimitRef(name, None) for name in names[:most]])
    measured = yield from _measure_limits(observer, statuses)
    shares = yield from _adaptive_shares(observer, statuses)
    waits = _oldest_by_queue(measured)
    queues = sorted(fleet.consumed.keys() | waits.keys())[:most]
    forecasts = yield from _read_forecasts(observer, statuses, measured, queues)
    overdue = yield from read_overdue(observer, queues)
    runnable = {queue: overdue.count_runnable([queue]).total() for queue in queues}
    stranded = yield from stranded_of(observer, fleet, waits)
    rules = yield from read_rules_status(observer)
    return Figures(
        tuple(
            _read_figures(status, one, shares.get(status.name, {}), forecast)
            for status, one, forecast in zip(statuses, measured, forecasts, strict=True)
        ),
        omitted=len(names) - len(statuses),
        runnable=runnable,
        workers=fleet.workers,
        stranded=(*_undefined(statuses), *stranded),
        outage_seconds=fleet.outage_seconds,
        rules_valid=None if rules is None else not any(one.error for one in rules.others),
    )


def _measure_limits(observer: Observer, statuses: Sequence[LimitStatus]) -> Plan[list[_Measured]]:
    keys, head = observer.keys, LimitRef("", None)
    due = keys.queue("").due
    lines = _MAX_LINES // max(1, len(statuses))
    lines = min(_MAX_LINES_OF_A_LIMIT, max(_MIN_LINES_OF_A_LIMIT, lines))
    heads = [keys.waiting_lists(head), keys.entries(head), keys.totals()]
    step = max(1, min(NAMES_OF_A_CALL, _LINES_OF_A_CALL // lines))
    found: list[_Measured] = []
    for start in range(0, len(statuses), step):
        args = [observer.now(), lines]
        for status in statuses[start : start + step]:
            args += [status.name, "1" if _has_slots(status) else ""]
        for slots, tasks, oldest, next_due, queues in (
            yield Call(script("measure_limits"), heads, args)
        ):
            found.append(
                _Measured(
                    slots,
                    tasks,
                    None if oldest < 0 else oldest / MICROSECONDS,
                    None if next_due < 0 else pause_to_seconds(next_due),
                    [queue.decode().removeprefix(due) for queue in queues],
                )
            )
    return found


def _adaptive_shares(
    observer: Observer, statuses: Sequence[LimitStatus]
) -> Plan[dict[str, dict[int, float]]]:
    """Return the shares of adaptive clauses that are in force, by limit and index."""
    adaptive = [
        LimitRef(status.name, None)
        for status in statuses
        if any(limit.algorithm == "adaptive" for limit in _limits_of(status))
    ]
    states = yield from read_states(observer, adaptive)
    return {
        ref.name: {n: one.share / MILLION for n, one in enumerate(state.states)}
        for ref, state in states.items()
    }


def _read_forecasts(
    observer: Observer,
    statuses: Sequence[LimitStatus],
    measured: Sequence[_Measured],
    queues: Sequence[str],
) -> Plan[list[float | None]]:
    """Return the forecast of each limit in seconds."""
    refs = [LimitRef(status.name, None) for status in statuses if status.waiting]
    found = (
        (yield from forecast_limits(observer, refs, _MAX_FORECAST_LINES, queues)) if refs else {}
    )
    if found:
        return [
            found[ref].seconds if (ref := LimitRef(status.name, None)) in found else None
            for status in statuses
        ]
    return [
        estimate_seconds(status, one.tasks_of_a_key or status.waiting)
        for status, one in zip(statuses, measured, strict=True)
    ]


def _limits_of(status: LimitStatus) -> Limits:
    return limits_in_force(status.name, status.clauses)


def _has_slots(status: LimitStatus) -> bool:
    return any(map(has_slots, _limits_of(status)))


def _read_figures(
    status: LimitStatus, measured: _Measured, shares: Mapping[int, float], forecast: float | None
) -> LimitFigures:
    limits = _limits_of(status)
    rates = [
        limit.rate.count * MICROSECONDS / limit.rate.period_us * shares.get(n, 1.0)
        for n, limit in enumerate(limits)
        if isinstance(limit.rate, Rate) and replace(limit, shadows=()) != UNLIMITED
    ]
    return LimitFigures(
        status,
        rate=min(rates, default=None),
        slots=measured.slots if _has_slots(status) else None,
        oldest=measured.oldest if status.waiting else None,
        forecast=forecast,
        next_due=measured.next_due if status.waiting else None,
    )


def _oldest_by_queue(measured: Sequence[_Measured]) -> dict[str, float]:
    """Return the queues of waiting tasks, each with the longest wait at a limit of one of them."""
    found: dict[str, float] = {}
    for one in measured:
        for queue in one.queues:
            found[queue] = max(found.get(queue, 0.0), one.oldest or 0.0)
    return found


def _undefined(statuses: Sequence[LimitStatus]) -> list[Stranded]:
    """Return the tasks that wait at limits that are not defined."""
    return [
        Stranded("", status.waiting, "limit", status.name)
        for status in statuses
        if status.waiting and not status.defined
    ]
