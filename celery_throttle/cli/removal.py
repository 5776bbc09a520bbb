"""``drain``, ``move`` and ``drop``: take waiting tasks out of their lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from celery_throttle.cli.console import confirm, echo_json
from celery_throttle.cli.options import (
    author_options,
    complete_limit,
    json_option,
    key_argument,
    yes_option,
)
from celery_throttle.cli.params import NameType
from celery_throttle.cli.target import Target, pass_target
from celery_throttle.cli.text import limit_text
from celery_throttle.observe.text import count
from celery_throttle.removal.counts import Removal, WaitingCount
from celery_throttle.removal.methods import RemovalMethods

limit_or_all = click.argument(
    "limit", type=NameType(), required=False, shell_complete=complete_limit
)
all_option = click.option("--all", "is_all", is_flag=True, help="Tasks of all limits.")

_PAST = {"drain": "Drained", "move": "Moved", "drop": "Dropped"}


@click.command()
@limit_or_all
@key_argument
@all_option
@author_options
@yes_option
@json_option
@pass_target
def drain(  # click passes them by name
    target: Target,
    limit: str | None,
    key: str | None,
    reason: str | None,
    by: str | None,
    *,
    is_all: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send waiting tasks back to the broker.

    To the queues in whose lines they wait, in order; for a rollback, or before this package is
    uninstalled. Workers that still have limits let them wait again. This needs the app.
    """
    throttle = _app_limits(target, limit, is_all=is_all)
    found = throttle.count_waiting(limit, key)
    question = f"{_found_text(found, limit, key)}\nThey go back to their queues. Drain them?"
    confirm(question, yes=yes or not found.waiting)
    with _progress("Draining", found.waiting) as progress:
        done = throttle.drain(limit, key, reason=reason, by=by, progress=progress)
    _report("drain", done, as_json=as_json)


@click.command()
@limit_or_all
@key_argument
@click.option("--queue", required=True, help="Where to: a queue of the app.")
@all_option
@author_options
@yes_option
@json_option
@pass_target
def move(  # noqa: PLR0917  # click passes them by name
    target: Target,
    limit: str | None,
    key: str | None,
    queue: str,
    reason: str | None,
    by: str | None,
    *,
    is_all: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send waiting tasks to another queue.

    This needs the app.
    """
    throttle = _app_limits(target, limit, is_all=is_all)
    found = throttle.count_waiting(limit, key)
    question = f"{_found_text(found, limit, key)}\nThey go to queue {queue}. Move them?"
    confirm(question, yes=yes or not found.waiting)
    with _progress("Moving", found.waiting) as progress:
        done = throttle.move(limit, queue, key, reason=reason, by=by, progress=progress)
    _report("move", done, as_json=as_json)


@click.command()
@limit_or_all
@key_argument
@all_option
@author_options
@yes_option
@json_option
@pass_target
def drop(  # click passes them by name
    target: Target,
    limit: str | None,
    key: str | None,
    reason: str | None,
    by: str | None,
    *,
    is_all: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Discard waiting tasks.

    Their state becomes REVOKED. This needs the app.
    """
    throttle = _app_limits(target, limit, is_all=is_all)
    found = throttle.count_waiting(limit, key)
    question = f"{_found_text(found, limit, key)}\nThey are discarded for good. Drop them?"
    confirm(question, yes=yes or not found.waiting)
    with _progress("Dropping", found.waiting) as progress:
        done = throttle.drop(limit, key, reason=reason or "dropped", by=by, progress=progress)
    _report("drop", done, as_json=as_json)


def _app_limits(target: Target, limit: str | None, *, is_all: bool) -> RemovalMethods:
    """Return the limits of the app, after a check of the arguments."""
    if is_all == (limit is not None):
        raise click.UsageError("give the name of a limit, or --all")
    target.require_app("whose broker and result backend have the tasks")
    throttle: Any = target.throttle
    return throttle  # type: ignore[no-any-return]  # of an app, it is a Throttle


def _found_text(found: WaitingCount, limit: str | None, key: str | None) -> str:
    """Return what waits, and what is left alone: ``"12 tasks wait for limit mail, ..."``."""
    need = "" if limit is None else f" for {limit_text(limit, key)}"
    text = f"{count(found.waiting, 'task')} {'waits' if found.waiting == 1 else 'wait'}{need}"
    queues = ", ".join(f"{tasks:,} in queue {queue}" for queue, tasks in found.queues.items())
    if queues:
        text += f": {queues}"
    if found.claimed:
        text += f"; {count(found.claimed, 'claimed task')} of workers will be left alone"
    if found.elsewhere:
        text += f"; {count(found.elsewhere, 'task')} of other brokers will be left alone"
    return f"{text}."


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int, int], None]]:
    with click.progressbar(length=max(1, total), label=label, file=sys.stderr) as bar:

        def update(done: int, of: int) -> None:
            bar.length = of
            bar.update(done - bar.pos)

        yield update


def _report(action: str, done: Removal, *, as_json: bool) -> None:
    if as_json:
        echo_json(done)
        return
    click.echo(f"{_PAST[action]} {count(done.removed, 'task')}.")
    if done.failed:
        click.echo(
            f"{_these(done.failed, 'task')} still waiting, as the messages could not be used.",
            err=True,
        )
    if done.claimed:
        click.echo(f"{_these(done.claimed, 'claimed task')} left alone: workers have them.")


def _these(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'is' if number == 1 else 'are'}"
