"""``ls`` and ``top``: the status of all limits, once or live."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from celery_throttle.cli.shared.console import (
    Row,
    Table,
    echo_json,
    interruption,
    live_screen,
    terminal_width,
)
from celery_throttle.cli.shared.options import IntervalType, command
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import clock, end_text, origin_text, pause_text, zone
from celery_throttle.observe.status_text import (
    age,
    clauses_text,
    layer_text,
    stranded_text,
    to_json,
    ungated_text,
    used_text,
)
from celery_throttle.observe.text import amount, count, format_author
from celery_throttle.observe.values import LimitStatus, RulesStatus, Status


@command()
def ls(target: Target, *, as_json: bool) -> None:
    """List all limits.

    Shows, for each limit, the definition in force and its origin, the units in use, the waiting
    tasks and the pauses. Also shows waiting tasks that no live worker can start.
    """
    _show_once(_read_status(target), as_json=as_json)


@command(
    click.option(
        "--every",
        type=IntervalType(0.5),
        default=2.0,
        show_default=True,
        help="Seconds between two updates.",
    )
)
def top(target: Target, *, every: float, as_json: bool) -> None:
    """Show all limits live, until Ctrl-C.

    The limits with the most waiting tasks come first. If standard output is not a terminal, or with
    --json, it shows them once.
    """
    status = _by_waiting(_read_status(target))
    if as_json or not sys.stdout.isatty():
        _show_once(status, as_json=as_json)
        return
    rates: Mapping[str, float] = {}
    with interruption() as interrupted, live_screen() as draw:
        while True:
            lines = _status_lines(status, shutil.get_terminal_size().columns, rates)
            draw([clock(status.at), *lines])
            if interrupted.wait(every):
                return
            before, status = status, _by_waiting(_read_status(target))
            rates = _rates(before, status)


def _read_status(target: Target) -> Status:
    """Return the status of all limits, with the names of queues as they are shown."""
    status = target.throttle.status(most=sys.maxsize)
    stranded = tuple(
        replace(one, queue=target.queue_name(one.queue), what=target.queue_name(one.what))
        for one in status.stranded
    )
    return replace(status, stranded=stranded)


def _show_once(status: Status, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = to_json(status)
        del fields["next"]  # all limits are here
        echo_json(fields)
    else:
        for line in _status_lines(status, terminal_width()):
            click.echo(line)


def _by_waiting(status: Status) -> Status:
    limits = sorted(status.limits, key=lambda limit: (-limit.waiting, limit.name))
    return replace(status, limits=tuple(limits))


def _rates(before: Status, after: Status) -> dict[str, float]:
    """Return the units granted per second of each limit between two looks."""
    seconds = (after.at - before.at).total_seconds()
    granted = {limit.name: limit.totals.granted for limit in before.limits}
    return {
        limit.name: max(0.0, limit.totals.granted - granted[limit.name]) / seconds
        for limit in after.limits
        if limit.name in granted and seconds > 0
    }


def _status_lines(
    status: Status, width: int | None, rates: Mapping[str, float] | None = None
) -> Iterator[str]:
    """Yield all lines of ``ls``; ``rates``: as for :func:`_limits_table`."""
    if status.limits:
        yield from _limits_table(status.limits, rates).lines(width)
    else:
        yield "No limits."
    yield ""
    yield count(status.workers, "live worker")
    if status.lost_shards:
        yield f"Shards that cannot be read: {', '.join(status.lost_shards)}"
    if status.stranded:
        yield "Stranded:"
        yield from (f"  {stranded_text(one)}" for one in status.stranded)
    if status.ungated:
        yield "Ungated:"
        yield from (f"  {ungated_text(one)}" for one in status.ungated)
    if status.rules is not None:
        yield from _rules_lines(status.rules)


def _limits_table(limits: Sequence[LimitStatus], rates: Mapping[str, float] | None) -> Table:
    """Return the table of ``ls``: a limit in each row, and below it what is out of the ordinary.

    ``rates``: units granted per second, by limit; None for a table without them.
    """
    head = ["limit", "in force", "origin", ">used", ">waiting", ">runnable", ">oldest"]
    head += [f">done by ({zone()})"] + ([] if rates is None else [">granted/s"])
    rows = []
    for one in limits:
        cells = [
            one.name,
            clauses_text(one),
            layer_text(one),
            used_text(one),
            f"{one.waiting:,}",
            f"{one.runnable:,}",
            "-" if one.oldest is None else age(one.oldest),
            end_text(one.forecast) if one.waiting else "-",
        ]
        if rates is not None:
            cells.append(amount(rates[one.name], 1) if one.name in rates else "-")
        rows.append(Row(cells, _remarks(one)))
    return Table(head, rows, flexible=1)


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


def _rules_lines(rules: RulesStatus) -> Iterator[str]:
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
