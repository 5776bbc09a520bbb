"""``fanouts`` and ``fanout show|pause|resume|cancel``."""

from __future__ import annotations

import sys
from math import inf
from typing import Any

import click

from celery_throttle.bulk.fan_out.handle import FanOut
from celery_throttle.cli.shared.console import (
    Row,
    Table,
    confirm,
    echo_json,
    echo_pairs,
    echo_table,
)
from celery_throttle.cli.shared.options import (
    author_options,
    json_option,
    make_completer,
    pause_length_option,
    to_seconds,
    yes_option,
)
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import end_text, paused_text, zone
from celery_throttle.observe.status.fan_outs import Progress, read_fan_outs
from celery_throttle.observe.status_text import fan_out_state, to_json, waiting_text
from celery_throttle.observe.text import amount, count, format_seconds

name_argument = click.argument(
    "name",
    shell_complete=make_completer(
        lambda throttle: [
            progress.name for progress in throttle.run_plan(read_fan_outs(throttle.observer))
        ]
    ),
)


@click.command()
@json_option
@pass_target
def fanouts(target: Target, *, as_json: bool) -> None:
    """List all fan-outs.

    The fan-outs with the most waiting tasks come first.
    """
    found = target.throttle.run_plan(read_fan_outs(target.throttle.observer))
    if as_json:
        echo_json({"fanouts": [_fields(progress) for progress in found]})
        return
    if not found:
        click.echo("No fan-outs.")
        return
    head = ("fan-out", "state", ">sent", ">waiting", ">running", ">done", ">failed", ">revoked")
    echo_table(Table(head, [Row(_cells(progress)) for progress in found]))


def _cells(progress: Progress) -> tuple[str, ...]:
    counts = (progress.sent, progress.waiting, progress.running, progress.done)
    ends = (progress.failed, progress.revoked)
    return (progress.name, _state(progress), *(f"{tasks:,}" for tasks in (*counts, *ends)))


def _state(progress: Progress) -> str:
    state = fan_out_state(progress)
    ends = state == "paused" and progress.paused < inf
    return f"{state} {format_seconds(progress.paused)}" if ends else state


def _fields(progress: Progress) -> dict[str, Any]:
    return {**to_json(progress), "paused": bool(progress.paused), "state": _state(progress)}


@click.group()
def fanout() -> None:
    """Show, pause, resume or cancel a fan-out."""


@fanout.command()
@name_argument
@json_option
@pass_target
def show(target: Target, name: str, *, as_json: bool) -> None:
    """Show the progress of a fan-out."""
    found = FanOut(target.throttle, name)
    progress, forecast = found.progress(), found.forecast()
    if as_json:
        echo_json({**_fields(progress), "forecast": forecast})
        return
    click.secho(f"fan-out {name}: {_state(progress)}", bold=True)
    names = ("sent", "waiting", "running", "done", "failed", "revoked")
    pairs = [(name, f"{getattr(progress, name):,}") for name in names]
    if progress.rate is not None:
        pairs.append(("rate", f"{amount(progress.rate)} tasks/s end"))
    if progress.waiting:
        pairs.append((f"all started ({zone()})", end_text(forecast)))
    echo_pairs(pairs)


@fanout.command()
@name_argument
@pause_length_option
@author_options
@json_option
@pass_target
def pause(
    target: Target,
    name: str,
    *,
    lasts: int | None,
    reason: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    """Pause a fan-out: none of its waiting tasks starts.

    A new pause never shortens a pause that is already in force.
    """
    found, seconds = FanOut(target.throttle, name), to_seconds(lasts)
    found.pause(seconds, reason=reason, by=by)
    progress = found.progress()
    if as_json:
        echo_json(_fields(progress))
    else:
        text = paused_text(f"fan-out {name}", progress.paused, seconds)
        click.echo(f"{text}: {waiting_text(progress.waiting)}.")


@fanout.command()
@name_argument
@author_options
@json_option
@pass_target
def resume(target: Target, name: str, *, reason: str | None, by: str | None, as_json: bool) -> None:
    """Lift the pause of a fan-out."""
    found = FanOut(target.throttle, name)
    found.resume(reason=reason, by=by)
    if as_json:
        echo_json(_fields(found.progress()))
    else:
        click.echo(f"Resumed fan-out {name}.")


@fanout.command()
@name_argument
@author_options
@yes_option
@json_option
@pass_target
def cancel(
    target: Target, name: str, *, reason: str | None, by: str | None, yes: bool, as_json: bool
) -> None:
    """Discard all waiting tasks of a fan-out.

    The state of each task becomes REVOKED. This command needs the app, and cannot be undone.
    """
    target.require_app("whose result backend stores the state REVOKED of the tasks")
    found = FanOut(target.throttle, name)
    waiting = found.progress().waiting
    tasks = count(waiting, "waiting task")
    confirm(f"This discards {tasks} of fan-out {name} for good.\nCancel it?", yes=yes)
    with click.progressbar(length=waiting, label="Cancelling", file=sys.stderr) as bar:
        cancelled = found.cancel(
            lambda discarded: bar.update(discarded - bar.pos), reason=reason, by=by
        )
    if as_json:
        echo_json({**_fields(found.progress()), "discarded": cancelled})
    else:
        click.echo(f"Cancelled fan-out {name}: {count(cancelled, 'task')} discarded.")
