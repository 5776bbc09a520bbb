"""``top``: the status of all limits, live."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace

import click

from celery_throttle.cli.shared.console import echo_json, interruption
from celery_throttle.cli.shared.options import json_option
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import clock
from celery_throttle.cli.show.status import read_status, status_fields
from celery_throttle.cli.show.status_view import status_lines
from celery_throttle.observe.values import Status

# The other screen of the terminal, without a cursor; and back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

# To the first column of the first line; deletes the rest of a line, or of the screen.
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command()
@click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two updates.",
)
@json_option
@pass_target
def top(target: Target, *, every: float, as_json: bool) -> None:
    """Show all limits live, until Ctrl-C.

    The limits with the most waiting tasks come first. If standard output is not a terminal, or with
    --json, it shows them once.
    """
    status = _by_waiting(read_status(target))
    if as_json:
        echo_json(status_fields(status))
    elif not sys.stdout.isatty():
        for line in status_lines(status, None):
            click.echo(line)
    else:
        _watch(target, status, every)


def _by_waiting(status: Status) -> Status:
    limits = sorted(status.limits, key=lambda limit: (-limit.waiting, limit.name))
    return replace(status, limits=tuple(limits))


def _watch(target: Target, status: Status, every: float) -> None:
    """Redraw the screen until Ctrl-C."""
    rates: Mapping[str, float] = {}
    with interruption() as interrupted:
        click.echo(_ENTER, nl=False)
        try:
            _draw(status, rates)
            while not interrupted.wait(every):
                before, status = status, _by_waiting(read_status(target))
                rates = _rates(before, status)
                _draw(status, rates)
        except KeyboardInterrupt:
            pass
        finally:
            click.echo(_LEAVE, nl=False)


def _rates(before: Status, after: Status) -> dict[str, float]:
    """Return the units granted per second of each limit between two looks."""
    seconds = (after.at - before.at).total_seconds()
    granted = {limit.name: limit.totals.granted for limit in before.limits}
    return {
        limit.name: max(0.0, limit.totals.granted - granted[limit.name]) / seconds
        for limit in after.limits
        if limit.name in granted and seconds > 0
    }


def _draw(status: Status, rates: Mapping[str, float]) -> None:
    columns, height = shutil.get_terminal_size()
    lines = [clock(status.at), *status_lines(status, columns, rates)]
    screen = "\n".join(f"{line}{_END_LINE}" for line in lines[:height])
    click.echo(f"{_HOME}{screen}{_END_SCREEN}", nl=False)
