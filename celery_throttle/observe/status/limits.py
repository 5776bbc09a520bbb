"""Plans that read the status of limits: what is stored of them, and what waits there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS, is_endless
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.reader import (
    FoundLines,
    Lines,
    forecast_lines,
    read_all_lines,
    read_some_lines,
)
from celery_throttle.observe.forecasts.solver import Forecast, needs_limit
from celery_throttle.observe.forecasts.states import Availability, read_states
from celery_throttle.observe.observer import Observer, at_time, read_text
from celery_throttle.observe.status.fleet import (
    Fleet,
    find_stranded,
    read_fleet,
    read_rules_status,
)
from celery_throttle.observe.status.records import read_recent
from celery_throttle.observe.status.runnable import read_overdue
from celery_throttle.observe.status.stored import (
    limits_in_force,
    list_keys,
    read_names,
    read_stored,
)
from celery_throttle.observe.values import (
    LimitDetails,
    LimitStatus,
    QueueStatus,
    SlotHolder,
    Status,
    Usage,
)
from celery_throttle.observe.waiting import MAX_LINES, Waiting, measure_waiting
from celery_throttle.operations.plan import Plan

#: Seconds for which a limit must have had room until its tasks count as runnable.
_RUNNABLE_AFTER_SECONDS = 0.5

#: Lines of which the tasks are counted by queue, in the details of a limit.
_MAX_COUNTED = 10_000

#: How many keys, slots and fan-outs the details of a limit have at most.
MAX_KEYS, MAX_SLOTS, MAX_FAN_OUTS = 10, 100, 100


def read_page(observer: Observer, after: str = "", most: int = 100) -> Plan[Status]:
    """Return the status of all limits, ``most`` at a time, with names behind ``after``."""
    names = yield from read_names(observer)
    page = [name for name in names if name > after][:most]
    status = yield from read_named(observer, page)
    has_more = bool(page) and page[-1] != names[-1]
    return replace(status, next=page[-1]) if has_more else status


def read_named(observer: Observer, names: Sequence[str]) -> Plan[Status]:
    """Return the status of the limits with these names, in this order."""
    stored = yield from read_stored(observer, [LimitRef(name, None) for name in names])
    return (yield from read_status(observer, stored))


def read_status(observer: Observer, stored: Sequence[LimitStatus]) -> Plan[Status]:
    """Return the status of limits of which is known what is stored."""
    fleet, statuses, waiting, _ = yield from _measure(observer, stored)
    waits: dict[str, float] = {}
    for one in waiting:
        for queue, found_there in one.queues.items():
            waits[queue] = max(found_there.oldest, waits.get(queue, 0.0))
    return Status(
        at=fleet.at,
        limits=tuple(statuses),
        next=None,
        workers=fleet.workers,
        stranded=(yield from find_stranded(observer, fleet, waits, statuses)),
        rules=(yield from read_rules_status(observer)),
        ungated=fleet.ungated,
    )


def read_details(observer: Observer, ref: LimitRef) -> Plan[LimitDetails]:
    """Return all about a limit, or one key of it.

    Raises:
        UnknownLimitError: neither the code nor the server has the limit.
    """
    yield from observer.check_known(ref)
    stored = yield from read_stored(observer, [ref])
    fleet, (status,), (waiting,), lines = yield from _measure(observer, stored, _MAX_COUNTED)
    used, holders = 0, tuple[SlotHolder, ...]()
    if any(map(has_slots, limits_in_force(status))):
        used, *rows = yield observer.call("list_slots", [observer.keys.entries(ref)], MAX_SLOTS)
        holders = tuple(_read_holder(*row) for row in rows)
    most_keys = MAX_KEYS if ref.key is None else 0
    _, waiting_keys = yield from list_keys(observer, ref.name, "waiting", most=most_keys)
    _, paused_keys = yield from list_keys(observer, ref.name, "paused", most=most_keys)
    needs = needs_limit(ref)
    fan_outs = {line.fan_out for line in lines.values() if line.fan_out and needs(line)}
    return LimitDetails(
        **{field.name: getattr(status, field.name) for field in fields(status)},
        recent=(yield from read_recent(observer, ref.name)),
        queues=_read_queues(waiting, fleet),
        top_keys=tuple((key, int(tasks)) for key, tasks in waiting_keys),
        top_paused_keys=tuple(
            (key, None if is_endless(int(end) - fleet.now) else at_time(end))
            for key, end in paused_keys
            if end > fleet.now
        ),
        slots_used=used,
        slots=holders,
        fan_outs=tuple(sorted(map(observer.keys.fan_out_name, fan_outs)))[:MAX_FAN_OUTS],
    )


def _measure(
    observer: Observer, stored: Sequence[LimitStatus], most: int = MAX_LINES
) -> Plan[tuple[Fleet, list[LimitStatus], list[Waiting], Lines]]:
    """Measure what waits at limits and keys of which is known what is stored.

    Returns also what was read for it: the workers, the tasks that wait at each, and the lines that
    wait anywhere; if there are too many, some; none if no task waits at these. ``most``: lines of
    each of them of which the tasks are counted by queue.
    """
    fleet = yield from read_fleet(observer)
    refs = [LimitRef(status.name, status.key) for status in stored]
    busy = [ref for ref, status in zip(refs, stored, strict=True) if status.waiting]
    found_at = dict(zip(busy, (yield from measure_waiting(observer, busy, most)), strict=True))
    waiting = [found_at.get(ref, Waiting({}, is_complete=True)) for ref in refs]
    defined = [ref for ref, status in zip(refs, stored, strict=True) if status.defined]
    states = yield from read_states(observer, defined)
    queues = set(chain(*(one.queues for one in waiting)))
    overdue = yield from read_overdue(observer, queues, _RUNNABLE_AFTER_SECONDS)
    runnable = overdue.count_runnable(queues)
    lines: Lines = {}
    forecasts: dict[LimitRef, Forecast] = {}
    filters = {ref: needs_limit(ref) for ref, one in zip(refs, waiting, strict=True) if one.queues}
    if filters:
        all_queues = sorted(queues | fleet.consumed.keys())
        found = FoundLines(fleet.now, {}, are_all=False)
        if all(one.is_complete for one in waiting):  # else there are too many
            found = yield from read_all_lines(observer, MAX_LINES, all_queues)
        if not found.are_all:
            for one in waiting:
                found.lines.update((yield from read_some_lines(observer, one)))
        lines = found.lines
        forecasts = yield from forecast_lines(observer, found, filters)
    statuses = [
        replace(
            status,
            usage=_read_usages(states[ref]) if ref in states else (),
            runnable=sum(
                tasks
                for other, tasks in runnable.items()
                if other == ref or (ref.key is None and other.name == ref.name)
            ),
            oldest=max((found.oldest for found in one.queues.values()), default=None),
            forecast=forecasts.get(ref),
        )
        for ref, status, one in zip(refs, stored, waiting, strict=True)
    ]
    return fleet, statuses, waiting, lines


def _read_usages(found: Availability) -> tuple[Usage, ...]:
    usages = []
    for limit, state in zip(found.limits, found.states, strict=True):
        left, share = state.amount / MILLION, state.share / MILLION
        # Of adaptive slots fewer may be in force. Of those in use, no more than these are shown.
        in_force = limit.burst * state.share // MILLION if has_slots(limit) else limit.burst
        used = in_force - left
        usages.append(Usage(str(limit), used, limit.burst, state.full / MICROSECONDS, share))
    return tuple(usages)


def _read_queues(waiting: Waiting, fleet: Fleet) -> tuple[QueueStatus, ...]:
    by_tasks = sorted(waiting.queues.items(), key=lambda item: (-item[1].tasks, item[0]))
    return tuple(
        QueueStatus(name, found.tasks, waiting.is_complete, fleet.consumes(name, found.oldest))
        for name, found in by_tasks
    )


def _read_holder(holder: bytes, lease_us: int) -> SlotHolder:
    """Return the holder of a slot. A task's is its worker, a token, and its id."""
    worker, _, token = read_text(holder).partition(" ")
    _, _, task_id = token.partition(" ")
    return SlotHolder(worker, task_id or None, lease_us / MICROSECONDS)
