"""The status of limits as tables and lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from celery_throttle.cli.shared.console import Row, Table
from celery_throttle.cli.shared.text import (
    clock,
    end_text,
    origin_text,
    pause_text,
    sparkline,
    zone,
)
from celery_throttle.limits.key import format_key
from celery_throttle.observe.forecasts.solver import WORKERS
from celery_throttle.observe.status_text import (
    age,
    clauses_text,
    end_cause,
    layer_text,
    stranded_text,
    totals_text,
    ungated_text,
    usage_text,
    used_text,
    waiting_tasks_text,
)
from celery_throttle.observe.text import amount, count, format_author, format_seconds
from celery_throttle.observe.values import (
    LimitDetails,
    LimitStatus,
    Pause,
    QueueStatus,
    RulesStatus,
    SlotHolder,
    Status,
)

#: Holders of slots that are shown.
_MAX_SHOWN_SLOTS = 10


def limits_table(limits: Sequence[LimitStatus], rates: Mapping[str, float] | None = None) -> Table:
    """Return the table of ``ls``: a limit in each row, and below it what is out of the ordinary.

    ``rates``: units granted per second, by limit; None for a table without them.
    """
    head = ("limit", "in force", "origin", ">used", ">waiting", ">runnable", ">oldest")
    end = f">done by ({zone()})"
    if rates is None:
        rows = [Row(_cells(one), _remarks(one)) for one in limits]
        return Table((*head, end), rows, flexible=1)
    rows = [Row((*_cells(one), _rate(rates.get(one.name))), _remarks(one)) for one in limits]
    return Table((*head, end, ">granted/s"), rows, flexible=1)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else amount(round(rate, 1))


def _cells(status: LimitStatus) -> tuple[str, ...]:
    return (
        status.name,
        clauses_text(status),
        layer_text(status),
        used_text(status),
        f"{status.waiting:,}",
        f"{status.runnable:,}",
        "-" if status.oldest is None else age(status.oldest),
        end_text(status.forecast) if status.waiting else "-",
    )


def _remarks(status: LimitStatus) -> list[str]:
    """Return what is out of the ordinary: pauses, a change at run time, special keys."""
    remarks = [pause_text(pause) for pause in status.pauses]
    origin = status.origin
    if origin is not None and origin.layer == "run time":
        remarks.append(origin_text(origin))
    if status.paused_keys:
        remarks.append(f"paused keys: {status.paused_keys:,}")
    if status.own_keys:
        remarks.append(f"keys with their own limit or weight: {status.own_keys:,}")
    return remarks


def status_lines(
    status: Status, width: int | None, rates: Mapping[str, float] | None = None
) -> list[str]:
    """Return all lines of ``ls``; ``rates``: as for :func:`limits_table`."""
    lines = ["No limits."]
    if status.limits:
        lines = [*limits_table(status.limits, rates).lines(width)]
    lines += ["", count(status.workers, "live worker")]
    if status.stranded:
        lines.append("Stranded:")
        lines += [f"  {stranded_text(one)}" for one in status.stranded]
    if status.ungated:
        lines.append("Ungated:")
        lines += [f"  {ungated_text(one)}" for one in status.ungated]
    if status.rules is not None:
        lines += rules_lines(status.rules)
    return lines


def rules_lines(rules: RulesStatus) -> Iterator[str]:
    """Yield which rules file is in force, and which workers have another one."""
    if rules.source is not None and rules.applied is not None:
        author = format_author(rules.author)
        yield f"Rules file {rules.source} in force since {clock(rules.applied)}{author}"
    for other in rules.others:
        if other.error is None:
            yield f"  worker {other.worker} has another {other.path}"
        else:
            yield f"  worker {other.worker} cannot use its file:"
            yield from (f"    {line}" for line in other.error.splitlines())


def details_pairs(status: LimitDetails) -> list[tuple[str, str]]:
    """Return the names and values of ``show``."""
    of_all = " (all keys)" if status.key is not None else ""
    pairs = [
        ("in force", "\n".join(status.clauses) if status.defined else "not defined"),
        ("origin", _origin(status)),
        ("weight", str(status.weight)),
        ("used", _used(status)),
        ("waiting", _waiting(status)),
        ("runnable", f"{status.runnable:,}"),
        ("done by", _done_by(status)),
        ("paused", "\n".join(map(_pause, status.pauses)) or "no"),
        ("queues", "\n".join(map(_queue, status.queues))),
        ("top keys", ", ".join(f"{format_key(key)} {tasks:,}" for key, tasks in status.top_keys)),
        ("paused keys", _paused_keys(status)),
        ("slots", _slots(status)),
        ("fan-outs", ", ".join(status.fan_outs)),
        # The server counts by limit, not by key.
        (f"15 minutes{of_all}", _recent(status)),
        (f"in total{of_all}", totals_text(status.totals)),
    ]
    return [(name, value) for name, value in pairs if value]


def _origin(status: LimitStatus) -> str:
    if status.origin is None:
        return "from the code; no worker has registered it yet" if status.defined else ""
    return f"{origin_text(status.origin)} (in force since {clock(status.origin.since)} {zone()})"


def _used(status: LimitStatus) -> str:
    of_keys = ["each key has its own"] if status.has_keys else []
    return "\n".join([*map(usage_text, status.usage), *of_keys])


def _waiting(status: LimitStatus) -> str:
    oldest = "" if status.oldest is None else f"; the oldest for {age(status.oldest)}"
    return f"{waiting_tasks_text(status)}{oldest}"


def _done_by(status: LimitStatus) -> str:
    forecast, cause = status.forecast, end_cause(status)
    if not status.waiting:
        return ""
    if forecast is None or forecast.seconds is None:
        return f"unknown: {cause}"
    at = f"{end_text(forecast)}, " if forecast.at else ""
    separator = "; " if forecast.limited_by == WORKERS else ", "
    return f"{at}in {format_seconds(forecast.seconds)}{separator if cause else ''}{cause}"


def _pause(pause: Pause) -> str:
    since = "" if pause.since is None else f" (since {clock(pause.since)})"
    return pause_text(pause) + since


def _queue(queue: QueueStatus) -> str:
    consumed = "" if queue.consumed else "; no live worker consumes it"
    return f"{queue.name}: {count(queue.waiting, 'task')}{consumed}"


def _paused_keys(details: LimitDetails) -> str:
    named = [
        f"{format_key(key)} {'until resumed' if end is None else f'until {clock(end)}'}"
        for key, end in details.top_paused_keys
    ]
    more = details.paused_keys - len(named)
    return ", ".join([*named, f"and {more:,} more"] if named and more > 0 else named)


def _slots(details: LimitDetails) -> str:
    if not details.slots_used:
        return ""
    lines = [f"{details.slots_used:,} in use"]
    lines += map(_slot, details.slots[:_MAX_SHOWN_SLOTS])
    return "\n".join(lines)


def _slot(slot: SlotHolder) -> str:
    task = f", task {slot.task_id}" if slot.task_id else ""
    return f"{slot.holder}{task}, lease of {format_seconds(slot.lease)}"


def _recent(details: LimitDetails) -> str:
    granted = [period.totals.granted for period in details.recent]
    if not any(granted):
        return ""
    return f"{sparkline(granted)} {count(sum(granted), 'unit')} granted"
