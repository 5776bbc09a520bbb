"""``celery-throttle demo``: the command and its options."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import click

from celery_throttle.cli.demo.picture import intro, picture, save
from celery_throttle.cli.demo.record import Record, format_ms
from celery_throttle.cli.demo.run import run_demo
from celery_throttle.cli.shared.charts import plot_option
from celery_throttle.cli.shared.console import echo_json, echo_pairs, interruption, live_screen
from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.shared.options import LIMIT, Parsed
from celery_throttle.cli.shared.text import format_figure
from celery_throttle.errors import ConfigurationError
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.limit import Limit
from celery_throttle.store.url import is_single_url, safe_url

#: The exit code of an interrupted command.
INTERRUPTED_EXIT_CODE = 130


def _parse_url(url: str) -> str:
    """Return the URL for Celery's Redis transport; messages omit its password."""
    try:
        usable = is_single_url(url) and not url.startswith("unix") and urlsplit(url).port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{safe_url(url)!r} cannot be used; allowed: redis://host:port/db, or rediss://, "
            "valkey://, valkeys://"
        )
    return url.replace("valkey", "redis", 1) if url.startswith("valkey") else url


@click.command()
@click.option(
    "--url",
    type=Parsed("url", _parse_url),
    envvar="THROTTLE_URL",
    show_envvar=True,
    help="URL of a Redis or Valkey server to use instead of a private one.",
)
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
@click.option("--json", "as_json", is_flag=True, help="Print only the measured figures, as JSON.")
@plot_option
def demo(url: str | None, limit: Limit, tasks: int, *, as_json: bool, plot: Path | None) -> None:
    """Demonstrate one limit with two real workers, in 15 seconds.

    Tasks that share a limit run in the same queue as tasks without a limit. The command starts a
    private Valkey server and two Celery workers, draws live charts of the tasks, and stops what it
    has started.
    """
    if limit.algorithm == CONCURRENCY:
        raise CommandError(f"{str(limit)!r} is no rate to show; allowed: such as '40/s burst 5'")
    record = Record(limit, tasks)
    try:
        _run(url, record, is_quiet=as_json)
    except KeyboardInterrupt:
        click.echo("Interrupted: the workers are stopped, nothing is left behind.", err=True)
        sys.exit(INTERRUPTED_EXIT_CODE)
    summary = record.summary()
    if as_json:
        echo_json(summary)
    else:
        echo_pairs(summary.pairs())
    if plot is not None:
        save(record, plot)
    if summary.tasks_ran < tasks:
        raise CommandError(f"only {summary.tasks_ran} of {tasks} tasks ran in time")


def _run(url: str | None, record: Record, *, is_quiet: bool) -> None:
    """Run the demo, and show it unless the command is quiet. Signals end it with a clean-up."""
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
        signals.remove(signal.SIGHUP)
    with interruption(*signals) as interrupted:

        def check() -> None:
            if interrupted.is_set():
                raise KeyboardInterrupt

        with closing(run_demo(url, record, check)) as polls:
            if is_quiet:
                for _ in polls:
                    pass
            elif sys.stdout.isatty():
                _draw_live(record, polls)
            else:
                _print_progress(record, polls)


def _draw_live(record: Record, polls: Iterator[None]) -> None:
    """Draw the record at each poll; the last picture stays."""
    with live_screen() as draw:
        for _ in polls:
            draw([*picture(record, shutil.get_terminal_size().columns)])
    for line in picture(record, shutil.get_terminal_size().columns):
        click.echo(line)


def _print_progress(record: Record, polls: Iterator[None]) -> None:
    """Print a line every second."""
    click.echo(f"{intro(record)} Starting ...")
    second = 0
    for _ in polls:
        if int(record.now) > second:
            second = int(record.now)
            summary = record.summary()
            click.echo(
                f"{record.now:4.0f} s   {record.per_second(record.now):3.0f} starts in the last "
                f"second   {record.waiting[-1][1]:4d} waiting   "
                f"{format_figure(summary.deliveries_per_task, '{:.2f}')} deliveries per task   "
                f"without a limit: {format_ms(summary.plain_median_s)}"
            )
