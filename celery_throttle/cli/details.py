"""``show``: the details of a limit, or of one of its keys."""

from __future__ import annotations

from dataclasses import replace

import click

from celery_throttle.cli.shared.charts import sparkline
from celery_throttle.cli.shared.console import echo_json, echo_pairs
from celery_throttle.cli.shared.options import json_option, takes_ref
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import clock, end_text, origin_text, pause_text, zone
from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.observe.forecasts.solver import WORKERS
from celery_throttle.observe.status.stored import is_stored
from celery_throttle.observe.status_text import (
    age,
    end_cause,
    nothing_stored_text,
    ref_text,
    totals_text,
    usage_text,
    waiting_tasks_text,
)
from celery_throttle.observe.text import count, format_seconds
from celery_throttle.observe.values import LimitDetails, LimitStatus, Pause, QueueStatus

#: Holders of slots that are shown.
_MAX_SHOWN_SLOTS = 10


@click.command()
@takes_ref()
@json_option
@pass_target
def show(target: Target, ref: LimitRef, *, as_json: bool) -> None:
    """Show the details of a limit, or of one key of it."""
    details = target.throttle[ref].status()
    queues = tuple(replace(one, name=target.queue_name(one.name)) for one in details.queues)
    details = replace(details, queues=queues)
    if as_json:
        echo_json(details)
        return
    click.secho(ref_text(ref), bold=True)
    if not target.throttle.run_plan(is_stored(target.throttle.observer, ref)):
        click.echo(nothing_stored_text(ref))
    echo_pairs([(name, value) for name, value in _details_pairs(details) if value])


def _details_pairs(status: LimitDetails) -> list[tuple[str, str]]:
    """Return the names and values of ``show``; the value is empty if there is nothing to say."""
    of_all = " (all keys)" if status.key is not None else ""  # the server counts by limit
    oldest = "" if status.oldest is None else f"; the oldest for {age(status.oldest)}"
    used = [*map(usage_text, status.usage), *(["each key has its own"] if status.has_keys else [])]
    return [
        ("in force", "\n".join(status.clauses) if status.defined else "not defined"),
        ("origin", _origin(status)),
        ("weight", str(status.weight)),
        ("used", "\n".join(used)),
        ("waiting", f"{waiting_tasks_text(status)}{oldest}"),
        ("runnable", f"{status.runnable:,}"),
        ("done by", _done_by(status)),
        ("paused", "\n".join(map(_pause, status.pauses)) or "no"),
        ("queues", "\n".join(map(_queue, status.queues))),
        ("top keys", ", ".join(f"{format_key(key)} {tasks:,}" for key, tasks in status.top_keys)),
        ("paused keys", _paused_keys(status)),
        ("slots", _slots(status)),
        ("fan-outs", ", ".join(status.fan_outs)),
        (f"15 minutes{of_all}", _recent(status)),
        (f"in total{of_all}", totals_text(status.totals)),
    ]


def _origin(status: LimitStatus) -> str:
    if status.origin is None:
        return "from the code; no worker has registered it yet" if status.defined else ""
    return f"{origin_text(status.origin)} (in force since {clock(status.origin.since)} {zone()})"


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
    for slot in details.slots[:_MAX_SHOWN_SLOTS]:
        task = f", task {slot.task_id}" if slot.task_id else ""
        lines.append(f"{slot.holder}{task}, lease of {format_seconds(slot.lease)}")
    return "\n".join(lines)


def _recent(details: LimitDetails) -> str:
    granted = [period.totals.granted for period in details.recent]
    if not any(granted):
        return ""
    return f"{sparkline(granted)} {count(sum(granted), 'unit')} granted"
