"""``why`` and ``waiting``: where a task is, and which tasks wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import click

from celery_throttle.cli.console import Row, Table, echo_json, echo_table
from celery_throttle.cli.exit_codes import ExitCode
from celery_throttle.cli.options import json_option, key_argument, limit_argument
from celery_throttle.cli.target import Target, pass_target
from celery_throttle.cli.text import (
    age,
    clock,
    limit_text,
    ordinal,
    pause_text,
    ref_text,
    sentence,
    zone,
)
from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.observe.json import to_json
from celery_throttle.observe.text import count
from celery_throttle.observe.values import TaskStatus

#: States of the result backend that say nothing: it stores no state of a task that waits.
_NO_STATE = "PENDING"

_UNKNOWN = (
    "It does not wait in a line, and no worker has claimed it from one. It is still at the broker; "
    "or a worker has received it and runs it, or waits until its ETA; or it has ended; or it never "
    "was sent to this app. Next: celery -A APP inspect query_task {task_id} shows whether a worker "
    "has it; ls shows whether workers live."
)


@click.command()
@click.argument("task_id")
@json_option
@pass_target
def why(target: Target, task_id: str, *, as_json: bool) -> None:
    """Show where a task is, and why it does not run yet."""
    status = target.throttle.explain(task_id)
    if status.queue is not None:
        status = replace(status, queue=target.queue_name(status.queue))
    state = _stored_state(target, task_id)
    if as_json:
        echo_json({**to_json(status), "state": state})
    else:
        for line in _explain(status, state):
            click.echo(line)
    if status.location == "unknown" and state is None:
        click.get_current_context().exit(ExitCode.NOT_FOUND)


def _stored_state(target: Target, task_id: str) -> str | None:
    """Return the state that the result backend of the app has stored; None if it has none."""
    if not target.has_app:
        return None
    try:
        state: str = target.throttle.app.AsyncResult(task_id).state
    except Exception:  # noqa: BLE001  # each backend has errors of its own, and may be missing
        return None
    return None if state == _NO_STATE else state


def _explain(status: TaskStatus, state: str | None) -> Iterator[str]:
    named = f"Task {status.task_id}" + (f" ({status.task})" if status.task else "")
    queue = "" if status.queue is None else f"queue {status.queue}"
    if status.location == "line":
        yield from _explain_line(status, named, queue)
    elif status.location == "claimed":
        yield (
            f"{named} was claimed from a line of {queue} by worker {status.worker}: it runs, or "
            "will in a moment. If the worker is lost, it returns to its line in "
            f"{age(status.lease or 0.0)}."
        )
    elif status.location == "quarantine":
        yield (
            f"{named} of {queue} is in quarantine: the worker that claimed it had no code for "
            "it, or failed to hand it over; its log says which. The task returns to its line when "
            "a worker that can run it reports to the server."
        )
    else:
        yield f"{named} is unknown here. {_UNKNOWN.format(task_id=status.task_id)}"
    if state is not None:
        yield f"The result backend has stored its state {state}."


def _explain_line(status: TaskStatus, named: str, queue: str) -> Iterator[str]:
    text = f"{named} waits in a line of {queue}"
    if status.position is not None and status.line_tasks is not None:
        text += f", {ordinal(status.position)} of {status.line_tasks:,}"
    if status.blocked_by is not None:
        text += f", at {limit_text(*status.blocked_by)}"
    yield f"{text}, for {age(status.waited or 0.0)}."
    needed = [limit_text(name, key) for name, key, _ in status.limits]
    if len(needed) > 1:
        yield f"It needs {', '.join(needed[:-1])} and {needed[-1]}."
    for pause in status.pauses:
        yield f"{sentence(pause_text(pause))}."
    if status.starts_in is None:
        yield "When it starts is not known."
    else:
        yield f"It is expected to start in {age(status.starts_in)}."
    if status.expires is not None:
        yield f"It expires at {clock(status.expires)}."
    if status.pauses or status.expires:
        yield f"Times are in {zone()}."


@click.command()
@limit_argument
@key_argument
@click.option("--first", type=click.IntRange(min=0), default=0, help="Number of tasks to skip.")
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Number of tasks to list.",
)
@json_option
@pass_target
def waiting(
    target: Target, limit: str, key: str | None, *, first: int, most: int, as_json: bool
) -> None:
    """List the tasks that wait at a limit.

    With KEY, lists only the tasks that wait at this key. The tasks are listed line by line.
    """
    ref, throttle = LimitRef(limit, key), target.throttle
    page = throttle.run_plan(throttle.observer.waiting_tasks(ref, throttle.task_name, first, most))
    tasks = tuple(replace(task, queue=target.queue_name(task.queue)) for task in page.tasks)
    page = replace(page, tasks=tasks)
    if as_json:
        echo_json(page)
        return
    if not page.tasks:
        click.echo(f"{count(page.waiting, 'task')} at {ref_text(ref)}.")
        return
    rows = [
        Row(
            (
                task.task_id,
                task.task or "-",
                task.queue,
                "-" if task.key is None else format_key(task.key),
                age(task.waited),
            )
        )
        for task in page.tasks
    ]
    echo_table(Table(("task id", "task", "queue", "key", ">waited"), rows, flexible=1))
    end = first + len(rows)
    more = "" if page.next is None else f"; the next with --first {page.next}"
    click.echo(f"\nTasks {first + 1:,} to {end:,} of {page.waiting:,}{more}")
