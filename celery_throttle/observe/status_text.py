"""Limits, tasks and fan-outs for the commands and the web page: in words, and as JSON.

The words have no clock times. As JSON, dataclasses are objects, times are ISO 8601 in UTC, and
infinity is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from math import isfinite, isinf
from typing import Any

from celery_throttle.limits.duration import pause_to_seconds
from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.observe.forecasts.solver import Cause, Forecast
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.observe.status.tasks import TaskStatus
from celery_throttle.observe.text import REMOVALS, amount, count, format_seconds, lasts_text
from celery_throttle.observe.totals import Totals
from celery_throttle.observe.values import (
    ApiRefusal,
    Change,
    LimitDetails,
    LimitStatus,
    Preview,
    Stranded,
    Ungated,
    Usage,
)
from celery_throttle.store.keys import FAN_OUT_NAME

_UNKNOWN = """\
It does not wait in a line, and no worker has claimed it from one. Either
- it is still at the broker (ls shows whether workers live);
- a worker runs it, or waits for its ETA: celery -A APP inspect query_task {task_id};
- it has ended; or
- it was never sent to this app."""

#: Shards that are named together.
_MAX_SHOWN_SHARDS = 5


def age(seconds: float) -> str:
    """Return how long something has lasted, to a tenth of a second."""
    return format_seconds(round(seconds, 1))


def ordinal(number: int) -> str:
    """Return ``"1st"``, ``"112th"``."""
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else suffix}"


def limit_text(name: str, key: str | None = None) -> str:
    """Return ``"limit mail"``, ``"limit mail of key t7"``, ``"fan-out newsletter"``."""
    if name == FAN_OUT_NAME and key is not None:
        return f"fan-out {format_key(key)}"
    return f"limit {name}" if key is None else f"limit {name} of key {format_key(key)}"


def clauses_text(status: LimitStatus) -> str:
    """Return the clauses of a limit."""
    return "; ".join(status.clauses) if status.defined else "not defined"


def layer_text(status: LimitStatus) -> str:
    """Return the layer that defines a limit."""
    if status.origin is None:
        return "code" if status.defined else "-"
    return status.origin.layer


def used_text(status: LimitStatus) -> str:
    """Return the units in use of each clause, to a tenth: ``"3/20"``."""
    if status.has_keys:
        return "by key"
    return "; ".join(f"{amount(round(one.used, 1))}/{one.most:,}" for one in status.usage) or "-"


def usage_text(usage: Usage) -> str:
    """Return the units in use of one clause, and when they are free again."""
    text = f"{amount(usage.used)} of {usage.most:,} ({usage.clause})"
    # A slot is free when its task has ended, so nobody knows when.
    if usage.reset_after and not _has_slots(usage.clause):
        text += f", free again in {format_seconds(usage.reset_after)}"
    if usage.share < 1 and _has_slots(usage.clause):
        text += f"; {int(usage.most * usage.share + 0.001)} slots in force"
    elif usage.share < 1:
        text += f"; the rate is at {usage.share:.0%}"
    return text


def _has_slots(clause: str) -> bool:
    return " at once" in clause


def nothing_stored_text(ref: LimitRef) -> str:
    """Return what a page shows of a key that was never used, or not for long."""
    return (
        f"Nothing is stored of key {format_key(ref.key or '')}: no task waits at it, none of its "
        "units are in use, and it has no pause, definition or weight of its own."
    )


def pause_length_text(seconds: float) -> str:
    """Return ``"for 10 min"``, or ``"until it is resumed"``."""
    return "until it is resumed" if isinf(seconds) else f"for {format_seconds(seconds)}"


def below_text(clauses: Sequence[object]) -> str:
    """Return what a limit becomes when its definition at run time is removed."""
    if clauses:
        return f"It will be: {'; '.join(map(str, clauses))}."
    return (
        "Neither the rules file nor the code that this process knows defines it. A worker whose "
        "code has it registers it again; otherwise it is removed."
    )


def waiting_text(tasks: int) -> str:
    """Return ``"12,000 tasks wait"``."""
    return f"{count(tasks, 'task')} {'waits' if tasks == 1 else 'wait'}"


def waiting_tasks_text(status: LimitStatus) -> str:
    """Return how many tasks wait: ``"120 tasks of 3 keys"``."""
    if not status.waiting:
        return "no tasks"
    keys = f" of {count(status.waiting_keys, 'key')}" if status.waiting_keys else ""
    return f"{count(status.waiting, 'task')}{keys}"


def shift_text(preview: Preview) -> str:
    """Return how much earlier or later a change lets the last task start: ``"7 min earlier"``.

    Empty if one of the two times is unknown, or a lower bound and the other is not.
    """
    before, after = preview.before, preview.after
    pairs = (before.at, after.at), (before.earliest, after.earliest)
    for first, last in pairs if bool(before.at) == bool(after.at) else ():
        if first and last:
            seconds = (last - first).total_seconds()
            return f"{format_seconds(abs(seconds))} {'later' if seconds > 0 else 'earlier'}"
    return ""


def cause_text(forecast: Forecast | None) -> str:
    """Return what the start of the last waiting task depends on, or why it is unknown.

    Empty if no task waits, or if nothing limits them.
    """
    if forecast is None or forecast.cause is None:
        return ""
    name, tasks = forecast.limited_by, count(forecast.unknown, "task")
    need = "needs" if forecast.unknown == 1 else "need"
    texts: Mapping[Cause, str] = {
        "limit": f"limited by {name}",
        "workers": f"no live worker consumes the queue of {tasks}",
        "pause": f"{tasks} {need} {name} or a key of it, which is paused until it is resumed",
        "processes": "no process takes the tasks",
        "slots": f"{tasks} {need} a slot of {name}, and nobody knows when one is released",
        "lines": "more than 2,000 lines wait, and not all were looked at",
    }
    if forecast.cause == "pause" and name is None:
        return "the fan-out of the tasks is paused"
    if forecast.cause == "slots" and forecast.seconds is not None:
        return f"limited by the slots of {name}"
    return texts[forecast.cause]


def stranded_text(stranded: Stranded) -> str:
    """Return a sentence about tasks that no live worker can start."""
    tasks = "tasks" if stranded.tasks is None else count(stranded.tasks, "task")
    if stranded.why == "queue":
        return f"{tasks} in queue {stranded.queue}: no live worker consumes it"
    if stranded.why == "limit":
        return (
            f"{tasks} at limit {stranded.what}: it is not defined; start a worker with its code, "
            "or define it"
        )
    return f"{tasks} in quarantine: the worker that claimed them had no code for them, or failed"


def ungated_text(ungated: Ungated) -> str:
    """Return a sentence about a task whose starts do not pass the gate."""
    text = f"{ungated.task}: its strategy starts it, later than its limits admit it"
    if not ungated.releases_early:
        return text
    return f"{text}; its slots are released before it ends: set acks_late=True"


def unconsumed_text(queue: str) -> str:
    """Return the warning about a queue to which tasks are about to move."""
    return f"No live worker consumes queue {queue}: the tasks wait there until one does."


def totals_text(totals: Totals) -> str:
    """Return the counters that are not 0, and a line about the waits."""
    named = [
        (totals.granted, f"{count(totals.granted, 'unit')} granted"),
        (totals.refunded, f"{amount(totals.refunded)} refunded"),
        (totals.refusals, f"{count(totals.refusals, 'request')} refused"),
        (totals.parked, f"{count(totals.parked, 'task')} parked"),
        (totals.claimed, f"{amount(totals.claimed)} claimed"),
        (totals.requeued, f"{amount(totals.requeued)} requeued"),
        (totals.drops, f"{amount(totals.drops)} dropped"),
        (totals.replaced, f"{amount(totals.replaced)} replaced"),
        (totals.revoked, f"{amount(totals.revoked)} revoked"),
        (totals.discarded, f"{amount(totals.discarded)} discarded"),
        (totals.removed, f"{amount(totals.removed)} removed"),
        (totals.api_refusals, f"{amount(totals.api_refusals)} refused by the API"),
        (totals.shadow_refused, f"{amount(totals.shadow_refused)} refused by a shadow limit"),
    ]
    text = ", ".join(text for total, text in named if total)
    waits = waits_text(totals)
    return f"{text}\nwaits: {waits}" if waits else text


def waits_text(totals: Totals) -> str:
    """Return ``"median 13 to 26 s, 95th percentile 26 to 51 s"``; empty if no task was claimed."""
    median, slowest = totals.wait_quantile(0.5), totals.wait_quantile(0.95)
    if median is None or slowest is None:
        return ""
    return f"median {_range_text(*median)}, 95th percentile {_range_text(*slowest)}"


def _range_text(low: float, high: float) -> str:
    if not low:
        return f"up to {format_seconds(high)}"
    if isinf(high):
        return f"above {format_seconds(low)}"
    first, last = format_seconds(low), format_seconds(high)
    same_unit = last.split()[1:] == first.split()[1:]
    return f"{first.split()[0] if same_unit else first} to {last}"


def refusal_text(refusal: ApiRefusal) -> str:
    """Return the key and the task of a refusal, as what follows its time; empty without both."""
    key = "" if refusal.key is None else f", key {format_key(refusal.key)}"
    return f"{key}, by task {refusal.task_id} ({refusal.task})" if refusal.task_id else key


def change_text(change: Change) -> str:
    """Return what changed: texts of limits, or weights, and how long they or a pause last."""
    if change.action == "pause":
        return format_seconds(pause_to_seconds(int(change.new)))
    if change.action == "resume":
        left = pause_to_seconds(int(change.old))
        return "it had no end" if isinf(left) else f"{format_seconds(left)} before its end"
    if change.action in REMOVALS:
        return change.new
    if change.action == "429":
        return f"by {change.new}" if change.new else "-"
    if not change.old and not change.new:
        return "-"
    return f"{change.old or 'none'} -> {change.new or 'none'}{lasts_text(change)}"


def task_text(status: TaskStatus, state: str | None = None) -> str:
    """Return where a task is, as the beginning of a sentence or as whole sentences.

    ``state``: its state in the result backend.
    """
    named = f"Task {status.task_id}" + (f" ({status.task})" if status.task else "")
    queue = "" if status.queue is None else f"queue {status.queue}"
    if status.location == "claimed":
        return (
            f"{named} was claimed from a line of {queue} by worker {status.worker}: it runs, or "
            "will in a moment."
        )
    if status.location == "quarantine":
        return (
            f"{named} of {queue} is in quarantine: the worker that claimed it had no code for "
            "it, or failed to hand it over; its log says which. The task returns to its line when "
            "a worker that can run it reports to the server."
        )
    if status.location == "unknown" and state is not None:
        return f"{named} does not wait in a line. Its state in the result backend is {state}."
    if status.location == "unknown":
        return f"{named} is unknown here.\n{_UNKNOWN.format(task_id=status.task_id)}"
    text = f"{named} waits in a line of {queue}"
    if status.position is not None and status.line_tasks is not None:
        text += f", {ordinal(status.position)} of {status.line_tasks:,}"
    if status.blocked_by is not None:
        text += f", at {limit_text(*status.blocked_by)}"
    else:
        text += ", to end as revoked: another task waits in its stead"
    return text


def fan_out_state(progress: Progress) -> str:
    """Return the state of a fan-out in one word."""
    if progress.cancelled:
        return "cancelled"
    if progress.paused:
        return "paused"
    if progress.complete:
        return "complete"
    return "running" if progress.closed else "sending"


#: Digits of numbers behind the point: times are whole microseconds.
_DIGITS = 6


def _objects(*names: str) -> Callable[[Sequence[Sequence[Any]]], Any]:
    return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]


#: Fields whose tuples become objects.
_SPECIAL: Mapping[tuple[type, str], Callable[[Any], Any]] = {
    (Totals, "refused"): dict,
    (Totals, "dropped"): dict,
    (LimitDetails, "top_keys"): _objects("key", "waiting"),
    (LimitDetails, "top_paused_keys"): _objects("key", "until"),
    (TaskStatus, "limits"): _objects("limit", "key", "cost"),
    (TaskStatus, "blocked_by"): lambda ref: ref and {"limit": ref[0], "key": ref[1]},
}


def to_json(value: Any) -> Any:
    """Return what :func:`json.dumps` writes for a value."""
    if is_dataclass(value):
        return {field.name: _field(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    if isinstance(value, datetime):
        utc = value.astimezone(timezone.utc).replace(tzinfo=None)
        return f"{utc.isoformat(timespec='milliseconds')}Z"
    if isinstance(value, float):
        return round(value, _DIGITS) if isfinite(value) else None
    return value


def _field(value: Any, name: str) -> Any:
    special = _SPECIAL.get((type(value), name))
    found = getattr(value, name)
    return to_json(special(found) if special else found)


def lost_texts(lost: Mapping[str, Exception]) -> list[str]:
    """Return which shards cannot be read and why, those with one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, error in lost.items():
        by_reason.setdefault(str(error), []).append(name)
    return [
        f"{'shard' if len(names) == 1 else 'shards'} {_shown_shards(names)} cannot be read: {why}"
        for why, names in by_reason.items()
    ]


def _shown_shards(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN_SHARDS
    shown = ", ".join(names[:_MAX_SHOWN_SHARDS])
    return f"{shown} and {more:,} more" if more > 0 else shown
