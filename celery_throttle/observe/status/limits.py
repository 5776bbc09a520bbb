"""Plans that read the status of limits: what is stored of them, and what waits there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.reader import forecast_limits
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.forecasts.states import Availability, read_states
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.fleet import Fleet, read_fleet
from celery_throttle.observe.status.rules import read_rules_status
from celery_throttle.observe.status.runnable import read_overdue
from celery_throttle.observe.status.stored import (
    read_names,
    read_with_pauses,
)
from celery_throttle.observe.times import at_time
from celery_throttle.observe.values import LimitStatus, Status, Stranded, Usage
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: Forecasts and ages look at this many lines at most.
MAX_LINES = 2000

#: Seconds for which a limit must have had room until its tasks count as runnable.
_RUNNABLE_AFTER_SECONDS = 0.5

_END = b"0"


class QueueWaiting(NamedTuple):
    """The tasks of one queue that wait at a limit."""

    tasks: int
    oldest: float  #: seconds that the oldest of them has waited


class Waiting(NamedTuple):
    """The lines that wait at a limit."""

    lines: int
    is_truncated: bool  #: whether there were too many lines to look at each
    queues: dict[str, QueueWaiting]

    @property
    def oldest(self) -> float | None:
        """Seconds that the oldest task has waited; None if nothing waits."""
        return max((queue.oldest for queue in self.queues.values()), default=None)


def read_page(observer: Observer, after: str = "", most: int = 100) -> Plan[Status]:
    """Return the status of all limits, ``most`` at a time, with names behind ``after``."""
    names = yield from read_names(observer)
    page = [name for name in names if name > after][:most]
    status = yield from read_named(observer, page)
    has_more = bool(page) and page[-1] != names[-1]
    return replace(status, next=page[-1]) if has_more else status


def read_named(observer: Observer, names: Sequence[str]) -> Plan[Status]:
    """Return the status of the limits with these names, in this order."""
    fleet = yield from read_fleet(observer)
    found = yield from read_statuses(observer, [LimitRef(name, None) for name in names], fleet)
    stranded = _find_stranded(fleet, found)
    limits = tuple(status for status, _ in found)
    rules = yield from read_rules_status(observer)
    at, workers = at_time(fleet.now), fleet.workers
    return Status(at, limits, None, workers, stranded, rules, fleet.ungated)


def read_statuses(
    observer: Observer, refs: Sequence[LimitRef], fleet: Fleet
) -> Plan[list[tuple[LimitStatus, Waiting]]]:
    """Return the status of some limits and keys, and the lines that wait there."""
    found = yield from read_with_pauses(observer, refs)
    waiting = {}
    for status, ref in zip(found, refs, strict=True):
        waiting[ref] = yield from _measure_waiting(observer, ref, status.waiting)
    defined = [ref for ref, one in zip(refs, found, strict=True) if one.defined]
    states = yield from read_states(observer, defined)
    queues = set(chain(*(one.queues for one in waiting.values())))
    overdue = yield from read_overdue(observer, queues, _RUNNABLE_AFTER_SECONDS)
    runnable = overdue.count_runnable(queues)
    with_lines = [ref for ref in refs if waiting[ref].lines]
    forecasts: Mapping[LimitRef, Forecast] = {}
    if with_lines and not any(waiting[ref].is_truncated for ref in with_lines):
        all_queues = sorted(queues | fleet.consumed.keys())
        forecasts = yield from forecast_limits(observer, with_lines, MAX_LINES, all_queues)
    statuses = []
    for status, ref in zip(found, refs, strict=True):
        about = replace(
            status,
            usage=_read_usages(states[ref]) if ref in states else (),
            runnable=sum(
                tasks
                for other, tasks in runnable.items()
                if other == ref or (ref.key is None and other.name == ref.name)
            ),
            oldest=waiting[ref].oldest,
            forecast=forecasts.get(ref),
        )
        statuses.append((about, waiting[ref]))
    return statuses


def _measure_waiting(observer: Observer, ref: LimitRef, waiting: int) -> Plan[Waiting]:
    """Measure the lines that wait at a limit, or at one key of it."""
    if not waiting:
        return Waiting(0, is_truncated=False, queues={})
    keys, by_key = observer.keys, ref.key is not None
    name = keys.waiting_lists(ref) if by_key else keys.waiting_list_index(ref.name)
    lines, is_truncated = 0, False
    queues: dict[str, QueueWaiting] = {}
    cursor, head = b"" if by_key else b"0", keys.queue("").due
    while True:
        cursor, count, flag, found = yield Call(
            script("measure_waiting"), [name], [observer.now(), cursor]
        )
        lines += count
        for due, tasks, oldest_us in zip(found[::3], found[1::3], found[2::3], strict=True):
            queue = due.decode().removeprefix(head)
            _add_tasks(queues, queue, QueueWaiting(tasks, oldest_us / MICROSECONDS))
        is_truncated = bool(flag) or (lines >= MAX_LINES and cursor != _END)
        if cursor == _END or lines >= MAX_LINES:
            return Waiting(lines, is_truncated, queues)


def _find_stranded(
    fleet: Fleet, found: Sequence[tuple[LimitStatus, Waiting]]
) -> tuple[Stranded, ...]:
    """Return the waiting tasks that no live worker can start."""
    queues: dict[str, QueueWaiting] = {}
    stranded = []
    for status, waiting in found:
        for queue, more in waiting.queues.items():
            _add_tasks(queues, queue, more)
        if not status.defined and status.waiting:
            stranded.append(Stranded("", status.waiting, "limit", status.name))
    for queue, (tasks, oldest) in sorted(queues.items()):
        if not fleet.consumes(queue, oldest):
            stranded.append(Stranded(queue, tasks, "queue", queue))
    if fleet.quarantined:
        stranded.append(Stranded("", fleet.quarantined, "task", ""))
    return tuple(stranded)


def _add_tasks(queues: dict[str, QueueWaiting], queue: str, more: QueueWaiting) -> None:
    """Add waiting tasks of a queue to what is known of all queues."""
    tasks, oldest = queues.get(queue, (0, 0.0))
    queues[queue] = QueueWaiting(tasks + more.tasks, max(oldest, more.oldest))


def _read_usages(found: Availability) -> tuple[Usage, ...]:
    """Return the usage of each clause of a limit."""
    usages = []
    for limit, state in zip(found.limits, found.states, strict=True):
        left, share = state.amount / MILLION, state.share / MILLION
        used = limit.burst - left
        usages.append(Usage(str(limit), used, limit.burst, state.full / MICROSECONDS, share))
    return tuple(usages)
