"""``why`` and ``waiting``: where a task is, and which tasks wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import click

from celery_throttle.cli.shared.console import Row, Table, echo_json, echo_table
from celery_throttle.cli.shared.exit_codes import ExitCode
from celery_throttle.cli.shared.options import json_option, most_option, takes_ref
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import clock, pause_text, sentence, zone
from celery_throttle.limits.key import LimitRef, format_key
from celery_throttle.observe.json import to_json
from celery_throttle.observe.status.tasks import read_waiting_tasks
from celery_throttle.observe.status_text import age, limit_text, ref_text, task_text
from celery_throttle.observe.task_values import TaskStatus, WaitingTask
from celery_throttle.observe.text import count


@click.command()
@click.argument("task_id")
@json_option
@pass_target
def why(target: Target, task_id: str, *, as_json: bool) -> None:
    """Show where a task is, and why it does not run yet."""
    status = target.throttle.explain(task_id)
    if status.queue is not None:
        status = replace(status, queue=target.queue_name(status.queue))
    state = target.throttle.stored_state(task_id) if target.has_app else None
    if as_json:
        echo_json({**to_json(status), "state": state})
    else:
        for line in _explain(status, state):
            click.echo(line)
    if status.location == "unknown" and state is None:
        click.get_current_context().exit(ExitCode.NOT_FOUND)


def _explain(status: TaskStatus, state: str | None) -> Iterator[str]:
    text = task_text(status)
    if status.location == "line":
        yield f"{text}, for {age(status.waited or 0.0)}."
        yield from _explain_line(status)
    elif status.location == "claimed":
        lease = age(status.lease or 0.0)
        yield f"{text} If the worker is lost, it returns to its line in {lease}."
    else:
        yield text
    if state is not None:
        yield f"The result backend has stored its state {state}."


def _explain_line(status: TaskStatus) -> Iterator[str]:
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
@takes_ref()
@click.option("--first", type=click.IntRange(min=0), default=0, help="Number of tasks to skip.")
@most_option(50, "tasks")
@json_option
@pass_target
def waiting(target: Target, ref: LimitRef, *, first: int, most: int, as_json: bool) -> None:
    """List the tasks that wait at a limit.

    With KEY, lists only the tasks that wait at this key. The tasks are listed line by line.
    """
    throttle = target.throttle
    plan = read_waiting_tasks(throttle.observer, ref, throttle.task_name, first, most)
    page = throttle.run_plan(plan)
    tasks = tuple(replace(task, queue=target.queue_name(task.queue)) for task in page.tasks)
    if as_json:
        echo_json(replace(page, tasks=tasks))
    elif not tasks:
        click.echo(f"{count(page.waiting, 'task')} at {ref_text(ref)}.")
    else:
        head = ("task id", "task", "queue", "key", ">waited")
        echo_table(Table(head, [_row(task) for task in tasks], flexible=1))
        more = "" if page.next is None else f"; the next with --first {page.next}"
        click.echo(f"\nTasks {first + 1:,} to {first + len(tasks):,} of {page.waiting:,}{more}")


def _row(task: WaitingTask) -> Row:
    key = "-" if task.key is None else format_key(task.key)
    return Row((task.task_id, task.task or "-", task.queue, key, age(task.waited)))
