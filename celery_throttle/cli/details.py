"""``show``, ``why`` and ``waiting``: the details of a limit, of a task, and which tasks wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import click

from celery_throttle.cli.shared.charts import sparkline
from celery_throttle.cli.shared.console import (
    Row,
    Table,
    echo_json,
    echo_pairs,
    echo_table,
    printable,
)
from celery_throttle.cli.shared.exit_codes import ExitCode
from celery_throttle.cli.shared.options import command, most_option, takes_ref
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import clock, end_text, origin_text, pause_text, sentence, zone
from celery_throttle.limiter.sharded import read_waiting
from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.observe.status.stored import is_stored
from celery_throttle.observe.status.tasks import TaskStatus, WaitingTask
from celery_throttle.observe.status_text import (
    age,
    cause_text,
    limit_text,
    nothing_stored_text,
    refusal_text,
    task_text,
    to_json,
    totals_text,
    usage_text,
    waiting_tasks_text,
)
from celery_throttle.observe.text import count, format_seconds
from celery_throttle.observe.values import LimitDetails, LimitStatus, Pause, QueueStatus

_MAX_SHOWN_SLOTS = 10


@command(takes_ref())
def show(target: Target, ref: LimitRef, *, as_json: bool) -> None:
    """Show the details of a limit, or of one key of it."""
    details = target.throttle[ref].status()
    queues = tuple(replace(one, name=target.queue_name(one.name)) for one in details.queues)
    details = replace(details, queues=queues)
    if as_json:
        echo_json(details)
        return
    click.secho(limit_text(*ref), bold=True)
    if not target.read(lambda observer: is_stored(observer, ref), ref):
        click.echo(nothing_stored_text(ref))
    echo_pairs([(name, value) for name, value in _details_pairs(details) if value])


def _details_pairs(status: LimitDetails) -> list[tuple[str, str]]:
    """Return the names and values of ``show``; the value is empty if there is nothing to say."""
    of_all = " (all keys)" if status.key is not None else ""  # the server counts by limit
    oldest = "" if status.oldest is None else f"; the oldest for {age(status.oldest)}"
    used = [*map(usage_text, status.usage), *(["each key has its own"] if status.has_keys else [])]
    last = status.last_api_refusal
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
        ("fan-outs", ", ".join(map(format_key, status.fan_outs))),
        (f"15 minutes{of_all}", _recent(status)),
        (f"in total{of_all}", totals_text(status.totals)),
        (f"last 429{of_all}", f"{clock(last.at)}{refusal_text(last)}" if last else ""),
        ("lost shards", ", ".join(status.lost_shards)),
    ]


def _origin(status: LimitStatus) -> str:
    if status.origin is None:
        return "from the code; no worker has registered it yet" if status.defined else ""
    return f"{origin_text(status.origin)} (in force since {clock(status.origin.since)} {zone()})"


def _done_by(status: LimitStatus) -> str:
    forecast = status.forecast
    if not status.waiting or forecast is None:
        return ""
    cause = cause_text(forecast)
    if forecast.seconds is None:
        known = f" (not before {clock(forecast.earliest)})" if forecast.earliest else ""
        return f"unknown{known}: {cause}"
    at = f"{end_text(forecast)}, " if forecast.at else ""
    return f"{at}in {format_seconds(forecast.seconds)}{', ' if cause else ''}{cause}"


def _pause(pause: Pause) -> str:
    since = "" if pause.since is None else f" (since {clock(pause.since)})"
    return pause_text(pause) + since


def _queue(queue: QueueStatus) -> str:
    consumed = "" if queue.consumed else "; no live worker consumes it"
    at_least = "" if queue.is_exact else "at least "
    return f"{queue.name}: {at_least}{count(queue.waiting, 'task')}{consumed}"


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


@command(click.argument("task_id"))
def why(target: Target, task_id: str, *, as_json: bool) -> None:
    """Show where a task is, and why it does not run yet."""
    status = target.throttle.explain(task_id)
    if status.queue is not None:
        status = replace(status, queue=target.queue_name(status.queue))
    state = target.throttle.stored_state(task_id) if target.has_app else None
    if as_json:
        echo_json({**to_json(status), "state": state})
    else:
        for text in _explain(status, state):
            for line in text.splitlines():
                click.echo(printable(line))
    if status.location == "unknown" and state is None:
        click.get_current_context().exit(ExitCode.NOT_FOUND)


def _explain(status: TaskStatus, state: str | None) -> Iterator[str]:
    text = task_text(status, state)
    if status.location == "line":
        yield f"{text}, for {age(status.waited or 0.0)}."
        yield from _explain_line(status)
    elif status.location == "claimed":
        lease = age(status.lease or 0.0)
        yield f"{text} If the worker is lost, it returns to its line in {lease}."
    else:
        yield text
    if state is not None and status.location != "unknown":
        yield f"The result backend has stored its state {state}."


def _explain_line(status: TaskStatus) -> Iterator[str]:
    needed = [limit_text(name, key) for name, key, _ in status.limits]
    if len(needed) > 1:
        yield f"It needs {', '.join(needed[:-1])} and {needed[-1]}."
    for pause in status.pauses:
        yield f"{sentence(pause_text(pause))}."
    forecast = status.forecast
    if forecast is not None and forecast.seconds is not None:
        yield f"It is expected to start in {age(forecast.seconds)}."
    elif forecast is not None:
        known = f", but not before {clock(forecast.earliest)}" if forecast.earliest else ""
        yield f"When it starts is unknown{known}: {cause_text(forecast)}."
    if status.expires is not None:
        yield f"It expires at {clock(status.expires)}."
    if status.pauses or status.expires or (forecast and forecast.earliest and not forecast.at):
        yield f"Times are in {zone()}."


@command(
    takes_ref(),
    click.option("--first", type=click.IntRange(min=0), default=0, help="Number of tasks to skip."),
    most_option(50, "tasks"),
)
def waiting(target: Target, ref: LimitRef, *, first: int, most: int, as_json: bool) -> None:
    """List the tasks that wait at a limit.

    With KEY, lists only the tasks that wait at this key. The tasks are listed line by line.
    """
    page = target.merged(read_waiting(target.throttle, ref, first, most))
    tasks = tuple(replace(task, queue=target.queue_name(task.queue)) for task in page.tasks)
    if as_json:
        echo_json(replace(page, tasks=tasks))
    elif not tasks:
        click.echo(f"{count(page.waiting, 'task')} at {limit_text(*ref)}.")
    else:
        head = ("task id", "task", "queue", "key", ">waited", ">starts in")
        echo_table(Table(head, [_row(task) for task in tasks], flexible=1))
        more = "" if page.next is None else f"; the next with --first {page.next}"
        click.echo(f"\nTasks {first + 1:,} to {first + len(tasks):,} of {page.waiting:,}{more}")


def _row(task: WaitingTask) -> Row:
    key = "-" if task.key is None else format_key(task.key)
    if task.not_before is None:
        starts = "unknown"
    else:
        starts = ("" if task.starts_in is not None else "at least ") + age(task.not_before)
    return Row((task.task_id, task.task or "-", task.queue, key, age(task.waited), starts))
