"""``fanouts`` and ``fanout show|pause|resume|cancel``."""

from __future__ import annotations

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
    echo_result,
    echo_table,
    progress_bar,
)
from celery_throttle.cli.shared.exit_codes import server_errors
from celery_throttle.cli.shared.options import (
    author_options,
    command,
    for_option,
    make_completer,
    yes_option,
)
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import end_text, paused_text, zone
from celery_throttle.observe.status.fan_outs import COUNTS, Progress, read_fan_outs
from celery_throttle.observe.status_text import fan_out_state, to_json, waiting_text
from celery_throttle.observe.text import amount, count, format_seconds

name_argument = click.argument(
    "name",
    shell_complete=make_completer(
        lambda throttle: (one.name for one in throttle.read(read_fan_outs).merged())
    ),
)


@command()
def fanouts(target: Target, *, as_json: bool) -> None:
    """List all fan-outs.

    The fan-outs with the most waiting tasks come first. A shard that cannot be reached is named.
    """
    found = target.read(read_fan_outs)
    if as_json:
        echo_json({"fanouts": [_fields(progress) for progress in found]})
    elif not found:
        click.echo("No fan-outs.")
    else:
        head = ("fan-out", "state", *(f">{name}" for name in COUNTS))
        rows = [Row((one.name, _state(one), *(n for _, n in _counts(one)))) for one in found]
        echo_table(Table(head, rows))


def _counts(progress: Progress) -> list[tuple[str, str]]:
    return [(name, f"{getattr(progress, name):,}") for name in COUNTS]


def _state(progress: Progress) -> str:
    state = fan_out_state(progress)
    ends = state == "paused" and progress.paused < inf
    return f"{state} {format_seconds(progress.paused)}" if ends else state


def _fields(progress: Progress) -> dict[str, Any]:
    return {**to_json(progress), "paused": bool(progress.paused), "state": _state(progress)}


@click.group()
def fanout() -> None:
    """Show, pause, resume or cancel a fan-out."""


@command(name_argument, group=fanout)
def show(target: Target, name: str, *, as_json: bool) -> None:
    """Show the progress of a fan-out."""
    found = FanOut(target.throttle, name)
    progress, forecast = found.progress(), found.forecast()
    if as_json:
        echo_json({**_fields(progress), "forecast": forecast})
        return
    click.secho(f"fan-out {name}: {_state(progress)}", bold=True)
    pairs = _counts(progress)
    if progress.rate is not None:
        pairs.append(("rate", f"{amount(progress.rate)} tasks/s end"))
    if progress.waiting:
        pairs.append((f"all started ({zone()})", end_text(forecast)))
    echo_pairs(pairs)
    for shard in progress.unreachable:
        click.echo(f"Its tasks in shard {shard} are not counted: the server cannot be reached.")
    for shard in progress.missing:
        click.echo(f"Its tasks in shard {shard} are not counted: the record there has expired.")


@command(name_argument, for_option("pause", "resume"), author_options, group=fanout)
def pause(
    target: Target, name: str, *, lasts: float | None, as_json: bool, **author: str | None
) -> None:
    """Pause a fan-out: none of its waiting tasks starts.

    A new pause never shortens a pause that is already in force.
    """
    found = FanOut(target.throttle, name)
    found.pause(lasts, **author)
    progress = found.progress()
    text = paused_text(f"fan-out {name}", progress.paused, lasts)
    echo_result(_fields(progress), f"{text}: {waiting_text(progress.waiting)}.", as_json=as_json)


@command(name_argument, author_options, group=fanout)
def resume(target: Target, name: str, *, as_json: bool, **author: str | None) -> None:
    """Lift the pause of a fan-out."""
    found = FanOut(target.throttle, name)
    found.resume(**author)
    echo_result(_fields(found.progress()), f"Resumed fan-out {name}.", as_json=as_json)


@command(name_argument, author_options, yes_option, group=fanout)
def cancel(target: Target, name: str, *, yes: bool, as_json: bool, **author: str | None) -> None:
    """Discard all waiting tasks of a fan-out.

    The state of each task becomes REVOKED, unless its result is ignored. This command needs the
    app, and cannot be undone.
    """
    target.require_app("whose result backend stores the state REVOKED of the tasks")
    found = FanOut(target.throttle, name)
    waiting = found.progress().waiting
    tasks = count(waiting, "waiting task")
    confirm(f"This discards {tasks} of fan-out {name} for good.\nCancel it?", yes=yes)
    backend = target.throttle.app.backend
    with server_errors(backend, "result backend"), progress_bar("Cancel") as progress:
        cancelled = found.cancel(lambda discarded: progress(discarded, waiting), **author)
    text = f"Cancelled fan-out {name}: {count(cancelled, 'task')} discarded."
    echo_result({**_fields(found.progress()), "discarded": cancelled}, text, as_json=as_json)
