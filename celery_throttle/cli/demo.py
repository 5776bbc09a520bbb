"""``celery-throttle demo``: its options; what they mean is in :mod:`celery_throttle.demo`."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import click

from celery_throttle.demo import DemoError
from celery_throttle.errors import LimitError
from celery_throttle.limits import Limit
from celery_throttle.store import is_store_url

#: The exit code of a command that was interrupted.
INTERRUPTED = 130


class LimitType(click.ParamType):
    """A limit as users write it."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Text to a limit."""
        try:
            return Limit.of(value)
        except LimitError as error:
            self.fail(str(error), param, ctx)


class UrlType(click.ParamType):
    """The URL of a server that can be both the broker and the keeper of the limits."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """A URL as Celery's Redis transport wants it. Messages never show it: it may hold secrets."""
        url = str(value)
        if not is_store_url(url) or url.startswith("unix"):
            self.fail("allowed: redis://, rediss://, valkey:// or valkeys://", param, ctx)
        return url.replace("valkey", "redis", 1) if url.startswith("valkey") else url


@click.command()
@click.option(
    "--url",
    type=UrlType(),
    envvar="THROTTLE_URL",
    help="A Redis or Valkey server to use instead of a private one; also read from THROTTLE_URL.",
)
@click.option(
    "--rate",
    "limit",
    type=LimitType(),
    default="40/s",
    show_default=True,
    help="The limit, such as '40/s' or '40/s burst 5'.",
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=400,
    show_default=True,
    help="How many tasks share the limit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the measured figures only, as JSON.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Save the last picture to this file.",
)
def demo(url: str | None, limit: Limit, tasks: int, *, as_json: bool, svg: Path | None) -> None:
    """Show one limit at work: two real workers, in about 15 seconds.

    Tasks that share a limit run in the same queue as tasks without one. The command starts a
    private Valkey server and two Celery workers, draws what happens, and ends them.
    """
    from celery_throttle.demo import run, views  # noqa: PLC0415  # needs Celery, the rest does not

    _end_in_order()
    if svg is not None and not svg.absolute().parent.is_dir():
        raise DemoError(f"cannot write {svg}: there is no such directory")
    try:
        with ExitStack() as ends:
            view = ends.enter_context(views.choose(as_json=as_json, svg=svg))
            record = run.run(url, limit, tasks, view)
    except KeyboardInterrupt:
        click.echo("Interrupted: the workers are stopped, nothing is left behind.", err=True)
        sys.exit(INTERRUPTED)
    summary = record.summary()
    if as_json:
        click.echo(json.dumps(summary.as_dict(), indent=2))
    if summary.tasks_ran < tasks:
        raise DemoError(f"only {summary.tasks_ran} of {tasks} tasks ran in time")


def _end_in_order() -> None:
    """A closed terminal or a polite kill ends the demo as Ctrl-C does: everything is put away."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
