"""``celery-throttle demo``: the command and its options."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import click

from celery_throttle.cli.demo.picture import MAX_WIDTH, figure_pairs, picture, save
from celery_throttle.cli.demo.record import Record
from celery_throttle.cli.demo.run import run_demo
from celery_throttle.cli.shared.charts import plot_option
from celery_throttle.cli.shared.console import (
    echo_json,
    echo_pairs,
    interruption,
    live_screen,
    terminal_width,
)
from celery_throttle.cli.shared.exit_codes import ArgumentError, CommandError
from celery_throttle.cli.shared.options import LIMIT, json_option
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.limit import Limit

INTERRUPTED_EXIT_CODE = 130


@click.command()
@click.option(
    "--rate",
    "limit",
    type=LIMIT,
    default="40/s",
    show_default=True,
    help="Limit, such as '40/s' or '40/s burst 5'.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    help="Number of tasks that share the limit.",
)
@json_option
@plot_option
def demo(limit: Limit, tasks: int, *, as_json: bool, plot: Path | None) -> None:
    """Demonstrate one limit with two real workers, in 15 seconds.

    Tasks that share a limit run in the same queue as tasks without a limit. The command starts a
    private Valkey server and two Celery workers, draws live charts of the tasks, and stops what it
    has started.
    """
    if limit.algorithm == CONCURRENCY:
        raise ArgumentError(f"{str(limit)!r} is no rate to show; allowed: such as '40/s burst 5'")
    record = Record(limit, tasks)
    _run(record, is_drawn=not as_json and sys.stdout.isatty())
    figures = record.figures()
    if as_json:
        echo_json(figures)
    else:
        for line in picture(record, terminal_width() or MAX_WIDTH):
            click.echo(line)
        echo_pairs(figure_pairs(figures))
    if plot is not None:
        save(record, plot)
    if len(record.starts) < tasks:
        raise CommandError(f"only {len(record.starts)} of {tasks} tasks ran in time")


def _run(record: Record, *, is_drawn: bool) -> None:
    """Run the demo, and draw it live. Signals end it with a clean-up."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
        signals.remove(signal.SIGHUP)
    with interruption(*signals) as interrupted:

        def check() -> None:
            if interrupted.is_set():
                raise CommandError("interrupted; the workers are stopped", INTERRUPTED_EXIT_CODE)

        with live_screen() if is_drawn else nullcontext() as draw:
            for _ in run_demo(record, check):
                if draw is not None:
                    draw([*picture(record, shutil.get_terminal_size().columns)])
