"""``celery-throttle demo``: the command and its options."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from celery_throttle.cli.demo import DemoError
from celery_throttle.cli.shared.params import LimitType
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.limit import Limit
from celery_throttle.store.url import is_single_url, safe_url

#: The exit code of an interrupted command.
INTERRUPTED_EXIT_CODE = 130


class UrlType(click.ParamType):
    """The URL of a server that can be both the broker and the limits server."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert a URL to one of Celery's Redis transport. Messages omit its password."""
        url = str(value)
        try:
            readable = is_single_url(url) and urlsplit(url).port != 0
        except ValueError:
            readable = False
        if not readable or url.startswith("unix"):
            allowed = "redis://host:port/db, or rediss://, valkey://, valkeys://"
            self.fail(f"{safe_url(url)!r} cannot be used; allowed: {allowed}", param, ctx)
        return url.replace("valkey", "redis", 1) if url.startswith("valkey") else url


@click.command()
@click.option(
    "--url",
    type=UrlType(),
    envvar="THROTTLE_URL",
    show_envvar=True,
    help="URL of a Redis or Valkey server to use instead of a private one.",
)
@click.option(
    "--rate",
    "limit",
    type=LimitType(),
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
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Save the final picture to this SVG file.",
)
def demo(url: str | None, limit: Limit, tasks: int, *, as_json: bool, svg: Path | None) -> None:
    """Demonstrate one limit with two real workers, in 15 seconds.

    Tasks that share a limit run in the same queue as tasks without a limit. The command starts a
    private Valkey server and two Celery workers, draws a live chart of the tasks, and stops what it
    has started.
    """
    from celery_throttle.cli.demo import run, views  # noqa: PLC0415  # only to run it

    if limit.algorithm == CONCURRENCY:
        raise DemoError(f"{str(limit)!r} is no rate to show; allowed: such as '40/s burst 5'")
    if svg is not None and not os.access(svg.absolute().parent, os.W_OK):
        raise DemoError(f"cannot write {svg}: there is no such directory, or it is not yours")
    try:
        with ExitStack() as ends:
            ends.enter_context(_interruptible())
            view = ends.enter_context(views.open_view(as_json=as_json, svg=svg))
            record = run.run_demo(url, limit, tasks, view)
    except KeyboardInterrupt:
        click.echo("Interrupted: the workers are stopped, nothing is left behind.", err=True)
        sys.exit(INTERRUPTED_EXIT_CODE)
    summary = record.summary()
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2))
    if summary.tasks_ran < tasks:
        raise DemoError(f"only {summary.tasks_ran} of {tasks} tasks ran in time")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, with a clean-up."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    if handlers[signal.SIGHUP] == signal.SIG_IGN:  # under nohup
        del handlers[signal.SIGHUP]
    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
