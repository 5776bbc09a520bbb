"""The plan that reads the details of one limit."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime

from celery_throttle.limits.duration import MICROSECONDS, is_endless
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.lines import read_lines
from celery_throttle.observe.forecasts.states import read_limits
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.report.periods import RECENT_SECONDS
from celery_throttle.observe.report.records import read_periods
from celery_throttle.observe.status.fleet import Fleet, read_fleet
from celery_throttle.observe.status.limits import MAX_LINES, Waiting, read_statuses
from celery_throttle.observe.status.stored import list_keys
from celery_throttle.observe.times import at_time
from celery_throttle.observe.values import (
    LimitDetails,
    QueueStatus,
    SlotHolder,
)
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: The periods of the last 15 minutes.
_PERIODS = 30

_MAX_KEYS, _MAX_SLOTS, _MAX_FAN_OUTS = 10, 100, 100


def read_details(observer: Observer, ref: LimitRef) -> Plan[LimitDetails]:
    """Return all about a limit, or one key of it.

    Raises:
        UnknownLimitError: neither the code nor the server has the limit.
    """
    yield from observer.check_known(ref)
    fleet = yield from read_fleet(observer)
    ((status, waiting),) = yield from read_statuses(observer, [ref], fleet)
    used, holders = 0, tuple[SlotHolder, ...]()
    limits = yield from read_limits(observer, [ref])
    if any(map(has_slots, limits.get(ref, ()))):
        used, holders = yield from _read_slots(observer, ref)
    return LimitDetails(
        **{field.name: getattr(status, field.name) for field in fields(status)},
        recent=(yield from read_periods(observer, ref.name, RECENT_SECONDS, _PERIODS)),
        queues=_read_queues(waiting, fleet),
        top_keys=(yield from _top_keys(observer, ref)),
        top_paused_keys=(yield from _paused_keys(observer, ref, fleet.now)),
        slots_used=used,
        slots=holders,
        fan_outs=(yield from _find_fan_outs(observer, ref, waiting)),
    )


def _top_keys(observer: Observer, ref: LimitRef) -> Plan[tuple[tuple[str, int], ...]]:
    if ref.key is not None:
        return ()
    _, found = yield from list_keys(observer, ref.name, "waiting", most=_MAX_KEYS)
    return tuple((key, int(tasks)) for key, tasks in found)


def _paused_keys(
    observer: Observer, ref: LimitRef, now: int
) -> Plan[tuple[tuple[str, datetime | None], ...]]:
    if ref.key is not None:
        return ()
    _, found = yield from list_keys(observer, ref.name, "paused", most=_MAX_KEYS)
    return tuple(
        (key, None if is_endless(int(end) - now) else at_time(int(end)))
        for key, end in found
        if end > now
    )


def _read_slots(observer: Observer, ref: LimitRef) -> Plan[tuple[int, tuple[SlotHolder, ...]]]:
    names = [observer.keys.entries(ref), observer.keys.claims("")]
    used, *rows = yield Call(script("list_slots"), names, [observer.now(), _MAX_SLOTS])
    return used, tuple(_read_holder(*row) for row in rows)


def _find_fan_outs(observer: Observer, ref: LimitRef, waiting: Waiting) -> Plan[tuple[str, ...]]:
    if waiting.is_truncated:
        return ()
    found: dict[str, None] = {}
    for queue in waiting.queues:
        for line in (yield from read_lines(observer, queue, MAX_LINES)).values():
            if line.fan_out and any(
                one == ref or (ref.key is None and one.name == ref.name) for one in line.costs
            ):
                found[observer.keys.fan_out_name(line.fan_out)] = None
    return tuple(sorted(found))[:_MAX_FAN_OUTS]


def _read_queues(waiting: Waiting, fleet: Fleet) -> tuple[QueueStatus, ...]:
    by_tasks = sorted(waiting.queues.items(), key=lambda item: (-item[1].tasks, item[0]))
    return tuple(
        QueueStatus(name, queue.tasks, fleet.consumes(name, queue.oldest))
        for name, queue in by_tasks
    )


def _read_holder(holder: bytes, lease_us: int, claimed: bytes) -> SlotHolder:
    """Return the holder of a slot. A task's is its worker, a token, and perhaps its id."""
    worker, _, token = holder.decode().partition(" ")
    _, _, own_id = token.partition(" ")
    return SlotHolder(worker, claimed.decode() or own_id or None, lease_us / MICROSECONDS)
