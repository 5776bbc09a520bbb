"""Plans that read where tasks are: why one does not run, and which wait at a limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.reader import forecast_positions, forecast_task
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.observer import Observer, at_time_or_none, read_text
from celery_throttle.observe.status.fleet import read_fleet
from celery_throttle.observe.status.stored import list_keys, read_stored
from celery_throttle.observe.values import Pause
from celery_throttle.operations.lines import list_names, waiting_queues
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_NAME

#: Returns the name of the task of a packed message; None if it cannot be read.
NameOf = Callable[[bytes], str | None]

#: How many keys with waiting tasks one call reads.
_KEYS_PAGE = 1000

#: How many lists of waiting lines are read first in search of a task.
_FEW_LISTS = 1000


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is, and why it does not run yet. Fields that do not apply are None or empty.

    Attributes:
        task_id: The id of the task.
        location: ``"line"``: the task waits in its line. ``"claimed"``: a worker has claimed it,
            and runs it now or in a moment. ``"quarantine"``: it waits for a worker that has code
            for it. ``"unknown"``: none of these. The task is still at the broker, runs without
            having waited, has ended, or does not exist.
        queue: The queue of the task, as in :class:`.QueueStatus`.
        task: The name of the task; None for a claimed task, and from a
            :class:`~celery_throttle.Limiter` for a task in a line.
        waited: The seconds since the task joined its line.
        position: The position in the line, from 1.
        line_tasks: The number of tasks in the line.
        limits: The limits that the task needs, as triples: limit, encoded key or None, and cost in
            units.
        blocked_by: The limit, and the encoded key or None, at which the line waits. None for a task
            that ``throttle_keep_waiting`` has replaced: the next free process ends it as revoked.
        forecast: When the task is expected to start: the forecast of the tasks of its line up to
            this one.
        pauses: The pauses of these limits and keys, and of the fan-out of the task.
        worker: The worker that has claimed the task.
        lease: The seconds until the worker counts as lost if it does not renew its lease.
        expires: When the task expires; None for never.
    """

    task_id: str
    location: str
    queue: str | None = None
    task: str | None = None
    waited: float | None = None
    position: int | None = None
    line_tasks: int | None = None
    limits: tuple[tuple[str, str | None, float], ...] = ()
    blocked_by: tuple[str, str | None] | None = None
    forecast: Forecast | None = None
    pauses: tuple[Pause, ...] = ()
    worker: str | None = None
    lease: float | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits in a line.

    Attributes:
        task_id: The id of the task.
        task: The name of the task; None if it cannot be read, and always from a
            :class:`~celery_throttle.Limiter`.
        queue: The queue of the task, as in :class:`.QueueStatus`.
        key: The encoded key of the limit at which the task waits; None if it needs the limit
            without a key.
        waited: The seconds since the task joined its line.
        starts_in: The seconds until its expected start; None if that is unknown.
        not_before: The seconds for which it does not start at least, by the rates of its limits;
            None if that is unknown. It is ``starts_in`` if that is known.
    """

    task_id: str
    task: str | None
    queue: str
    key: str | None
    waited: float
    starts_in: float | None = None
    not_before: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Tasks that wait at a limit, one page at a time.

    Attributes:
        waiting: The number of all tasks that wait at the limit.
        tasks: The tasks of this page, line by line, in the order of each line.
        next: The ``first`` of the next page; None if this is the last page.
    """

    waiting: int
    tasks: tuple[WaitingTask, ...]
    next: int | None


def explain_task(observer: Observer, task_id: str, name_of: NameOf) -> Plan[TaskStatus]:
    """Return where a task is, and why it does not run yet."""
    fleet = yield from read_fleet(observer)
    found = yield from _find_task(observer, task_id, fleet.consumed, name_of)
    if found.location != "unknown":
        return found
    # Its queue may have no worker yet. Most often a few lists of many tell which queue that is.
    _, names = yield from list_names(observer)
    for most_lists in (_FEW_LISTS, sys.maxsize):
        queues, are_all = yield from waiting_queues(observer.keys, names, most_lists)
        if not {*queues} <= fleet.consumed.keys():
            found = yield from _find_task(observer, task_id, queues, name_of)
        if are_all or found.location != "unknown":
            break
    return found


def _find_task(
    observer: Observer, task_id: str, queues: Iterable[str], name_of: NameOf
) -> Plan[TaskStatus]:
    keys = observer.keys
    names = [keys.workers, keys.quarantine, keys.claims(""), *chain(*map(keys.queue, queues))]
    kind = b"more"
    row: list[Any] = ["", "0"]
    while kind == b"more":
        kind, *row = yield observer.call("find_task", [*names, keys.totals()], task_id, *row)
    if kind == b"unknown":
        return TaskStatus(task_id, "unknown")
    waited, lines, *about = row
    status = TaskStatus(
        task_id,
        location=kind.decode(),
        queue=lines.decode().removeprefix(keys.queue("").lines),
        waited=waited / MICROSECONDS,
    )
    if kind == b"claim":
        worker, lease_us = about
        return replace(
            status, location="claimed", worker=worker.decode(), lease=lease_us / MICROSECONDS
        )
    if kind == b"quarantine":
        return replace(status, task=about[0].decode().partition(" ")[2] or None, waited=None)
    return (yield from _explain_line(observer, status, about, name_of, queues))


def _explain_line(
    observer: Observer,
    status: TaskStatus,
    about: Sequence[Any],
    name_of: NameOf,
    queues: Iterable[str],
) -> Plan[TaskStatus]:
    """Add what is known of a task in a line; ``about`` is the rest of the script's reply."""
    line, position, tasks, index, expires, message, costs = about
    needs = [
        (observer.keys.field_ref(field.decode()), float(cost) / MILLION)
        for field, cost in zip(costs[::2], costs[1::2], strict=True)
    ]
    status = replace(
        status,
        task=name_of(message),
        position=position,
        line_tasks=tasks,
        limits=tuple((ref.name, ref.key, cost) for ref, cost in needs if ref.name != FAN_OUT_NAME),
        expires=at_time_or_none(expires),
    )
    if not index:
        return status
    statuses = yield from read_stored(observer, [ref for ref, _ in needs])
    forecast = yield from forecast_task(observer, status.queue or "", line, position, queues)
    blocking, _ = needs[index - 1]
    return replace(
        status,
        blocked_by=(blocking.name, blocking.key),
        forecast=forecast,
        pauses=tuple(dict.fromkeys(chain(*(status.pauses for status in statuses)))),
    )


def read_waiting_tasks(
    observer: Observer, ref: LimitRef, name_of: NameOf, first: int = 0, most: int = 50
) -> Plan[WaitingPage]:
    """Return tasks that wait at a limit, or at one key of it, in one shard; ``next`` is None.

    ``first``: how many to pass over. Raises as :meth:`check_known`.
    """
    yield from observer.check_known(ref)
    (status,) = yield from read_stored(observer, [ref])
    tasks: list[_ListedTask] = []
    passed = 0
    for start in range(0, status.waiting_keys, _KEYS_PAGE):
        _, keys = yield from list_keys(observer, ref.name, "waiting", start, _KEYS_PAGE)
        for key, count in keys:
            if passed + count > first and len(tasks) < most:
                args = LimitRef(ref.name, key), max(0, first - passed), most - len(tasks)
                tasks += yield from _tasks_at(observer, *args, name_of)
            passed += int(count)
        if len(tasks) >= most:
            break
    if len(tasks) < most and passed < status.waiting:  # those that need no key
        args = ref, max(0, first - passed), most - len(tasks)
        tasks += yield from _tasks_at(observer, *args, name_of)
    listed = yield from _add_starts(observer, tasks)
    return WaitingPage(status.waiting, listed, None)


class _ListedTask(NamedTuple):
    task: WaitingTask
    line: bytes
    position: int


def _add_starts(observer: Observer, tasks: Sequence[_ListedTask]) -> Plan[tuple[WaitingTask, ...]]:
    """Add to each task when it is expected to start."""
    positions: dict[tuple[str, bytes], list[int]] = {}
    for one in tasks:
        positions.setdefault((one.task.queue, one.line), []).append(one.position)
    starts, are_all = yield from forecast_positions(observer, positions)
    return tuple(
        replace(one.task, starts_in=seconds if are_all else None, not_before=seconds)
        for one in tasks
        for seconds in [starts[one.line, one.position]]
    )


def _tasks_at(
    observer: Observer, ref: LimitRef, first: int, most: int, name_of: NameOf
) -> Plan[list[_ListedTask]]:
    """Return tasks that wait at exactly this limit and key."""
    queue_heads = observer.keys.queue("")
    names = [observer.keys.waiting_lists(ref), queue_heads.messages, queue_heads.due]
    tasks: list[_ListedTask] = []
    count = sys.maxsize
    while len(tasks) < min(most, count - first):  # one call replies a few large tasks only
        count, *rows = yield observer.call(
            "list_tasks", names, first + len(tasks), most - len(tasks)
        )
        tasks += (_read_task(ref, row, name_of) for row in rows)
        if not rows:
            break
    return tasks


def _read_task(ref: LimitRef, row: Sequence[Any], name_of: NameOf) -> _ListedTask:
    task_id, waited_us, message, queue, line, position = row
    name, waited = name_of(message) if message else None, waited_us / MICROSECONDS
    task = WaitingTask(read_text(task_id), name, queue.decode(), ref.key, waited)
    return _ListedTask(task, line, position)
