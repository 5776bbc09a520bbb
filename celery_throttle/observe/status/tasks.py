"""Plans that read where tasks are: why one does not run, and which wait at a limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.reader import forecast_task
from celery_throttle.observe.observer import Observer, at_time_or_none
from celery_throttle.observe.status.fleet import read_fleet
from celery_throttle.observe.status.limits import MAX_LINES
from celery_throttle.observe.status.stored import list_keys, read_stored, shown_ref
from celery_throttle.observe.task_values import TaskStatus, WaitingPage, WaitingTask
from celery_throttle.operations.lines import limit_names, waiting_queues
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_NAME
from celery_throttle.store.script import Call, script

#: Returns the name of the task of a packed message; None if it cannot be read.
NameOf = Callable[[bytes], str | None]

#: How many keys with waiting tasks one call reads.
_KEYS_PAGE = 1000

#: How many waiting lists are looked at first to find queues without a worker.
_FEW_LISTS = 2000


def explain_task(observer: Observer, task_id: str, name_of: NameOf) -> Plan[TaskStatus]:
    """Return where a task is, and why it does not run yet."""
    fleet = yield from read_fleet(observer)
    found = yield from _find_task(observer, task_id, fleet.consumed, name_of)
    if found.location != "unknown":
        return found
    # Its queue may have no worker yet. With many keys it takes long to find all such queues.
    _, names = yield from limit_names(observer.keys, observer.now())
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
        args = [observer.now(), task_id, *row]
        kind, *row = yield Call(script("find_task"), [*names, keys.totals()], args)
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
    line, position, tasks, index, expires, message, flat = about
    costs = {
        observer.keys.field_ref(field.decode()): float(cost) / MILLION
        for field, cost in zip(flat[::2], flat[1::2], strict=True)
    }
    refs = list(costs)
    statuses = yield from read_stored(observer, [*dict.fromkeys(chain(*map(_with_whole, refs)))])
    pauses = chain(*(status.pauses for status in statuses))
    starts_in = yield from forecast_task(observer, line, position, MAX_LINES, queues)
    return replace(
        status,
        task=name_of(message),
        position=position,
        line_tasks=tasks,
        limits=tuple(
            (ref.name, ref.key, cost) for ref, cost in costs.items() if ref.name != FAN_OUT_NAME
        ),
        blocked_by=shown_ref(refs[index - 1]),
        starts_in=starts_in,
        pauses=tuple(pauses),
        expires=at_time_or_none(expires),
    )


def read_waiting_tasks(
    observer: Observer, ref: LimitRef, name_of: NameOf, first: int = 0, most: int = 50
) -> Plan[WaitingPage]:
    """Return tasks that wait at a limit, or at one key of it, some at a time.

    ``first``: how many to pass over. Raises as :meth:`check_known`.
    """
    yield from observer.check_known(ref)
    (status,) = yield from read_stored(observer, [ref])
    tasks: list[WaitingTask] = []
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
    end = first + len(tasks)
    has_more = bool(tasks) and end < status.waiting
    return WaitingPage(status.waiting, tuple(tasks), end if has_more else None)


def _tasks_at(
    observer: Observer, ref: LimitRef, first: int, most: int, name_of: NameOf
) -> Plan[list[WaitingTask]]:
    """Return tasks that wait at exactly this limit and key."""
    queue_heads = observer.keys.queue("")
    names = [observer.keys.waiting_lists(ref), queue_heads.messages, queue_heads.due]
    tasks: list[WaitingTask] = []
    count = sys.maxsize
    while len(tasks) < min(most, count - first):  # one call replies a few large tasks only
        args = [observer.now(), first + len(tasks), most - len(tasks)]
        count, *rows = yield Call(script("list_tasks"), names, args)
        tasks += (_read_task(ref, row, name_of) for row in rows)
        if not rows:
            break
    return tasks


def _with_whole(ref: LimitRef) -> tuple[LimitRef, ...]:
    """Return a key of a limit with the limit itself, as both may be paused."""
    return (ref,) if ref.key is None else (LimitRef(ref.name, None), ref)


def _read_task(ref: LimitRef, row: Sequence[Any], name_of: NameOf) -> WaitingTask:
    task_id, waited, message, queue = row
    name = name_of(message) if message else None
    return WaitingTask(task_id.decode(), name, queue.decode(), ref.key, waited / MICROSECONDS)
