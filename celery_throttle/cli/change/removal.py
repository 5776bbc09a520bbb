"""``drain``, ``move``, ``drop`` and ``purge``: take waiting tasks out of their lines.

They need the app.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import click

from celery_throttle.bulk.removal.counts import Removal, WaitingCount
from celery_throttle.cli.shared.console import confirm, echo_json
from celery_throttle.cli.shared.options import (
    all_option,
    author_options,
    check_limit_or_all,
    json_option,
    key_argument,
    limit_or_all,
    yes_option,
)
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.fleet import is_consumed
from celery_throttle.observe.status_text import limit_text, unconsumed_text
from celery_throttle.observe.text import count

#: Of the commands for the tasks of a limit.
_OPTIONS = (pass_target, json_option, yes_option, author_options, all_option, key_argument)


def _command(function: Callable[..., None]) -> click.Command:
    """Make a command of a function, with these options."""
    decorators = (*_OPTIONS, limit_or_all, click.command())
    made: click.Command = reduce(lambda made, add: add(made), decorators, function)  # type: ignore[assignment]  # the last one makes it
    return made


@_command
def drain(target: Target, limit: str | None, key: str | None, **options: Any) -> None:
    """Send waiting tasks back to the broker.

    Each task goes to the queue in whose line it waits, in the order of the line. Use this for a
    rollback, or before you uninstall this package. Workers that still enforce the limits put the
    tasks back into their lines. This command needs the app.
    """
    throttle, ref = _prepare(
        target, limit, key, "They go back to their queues. Drain them?", options
    )
    author = {name: options[name] for name in ("reason", "by")}
    with _progress("Draining") as progress:
        drain = throttle.drain_all if ref is None else throttle[ref].drain
        done = drain(**author, progress=progress)
    _report("Drained", done, options)


@_command
@click.option("--queue", required=True, help="Queue of the app to send the tasks to.")
def move(target: Target, limit: str | None, key: str | None, **options: Any) -> None:
    """Send waiting tasks to another queue.

    This command needs the app.
    """
    queue = options["queue"]
    question = f"They go to queue {queue}. Move them?"
    throttle, ref = _prepare(target, limit, key, question, options)
    author = {name: options[name] for name in ("reason", "by")}
    with _progress("Moving") as progress:
        move = throttle.move_all if ref is None else throttle[ref].move
        done = move(queue, **author, progress=progress)
    _report("Moved", done, options)


@_command
def drop(target: Target, limit: str | None, key: str | None, **options: Any) -> None:
    """Discard waiting tasks.

    The state of each task becomes REVOKED. This command needs the app, and cannot be undone.
    """
    throttle, ref = _prepare(target, limit, key, "They are discarded for good. Drop them?", options)
    reason = options["reason"] or "dropped"
    with _progress("Dropping") as progress:
        drop = throttle.drop_all if ref is None else throttle[ref].drop
        done = drop(reason=reason, by=options["by"], progress=progress)
    _report("Dropped", done, options)


@click.command()
@click.option(
    "--queue", "-Q", "queues", multiple=True, help="A queue to purge.  [default: all of the app]"
)
@yes_option
@json_option
@pass_target
def purge(target: Target, queues: tuple[str, ...], *, as_json: bool, yes: bool) -> None:
    """Discard messages at the broker and waiting tasks.

    Discards the messages in queues and the tasks in the lines of these queues. Discarded tasks get
    no result. "celery purge" leaves the tasks in lines alone. This command needs the app, and
    cannot be undone.
    """
    target.require_app("whose broker and queues are purged")
    throttle: Any = target.throttle  # of an app, it is a Throttle
    names = queues or sorted(throttle.app.amqp.queues)
    confirm(
        f"All tasks in {', '.join(names)} are discarded for good, at the broker and in lines.\n"
        "Purge them?",
        yes=yes,
    )
    discarded = throttle.purge(names)
    if as_json:
        echo_json({"discarded": discarded})
    else:
        click.echo(f"Discarded {count(discarded, 'task')}.")


def _prepare(
    target: Target, limit: str | None, key: str | None, question: str, options: dict[str, Any]
) -> tuple[Any, LimitRef | None]:
    """Check the arguments, and ask unless no task waits. The queue of a move may have no consumer.

    Return the limits of the app, and the limit and key of the arguments; None for all limits.
    """
    check_limit_or_all(limit, is_all=options["is_all"])
    target.require_app("whose broker and result backend have the tasks")
    throttle: Any = target.throttle  # of an app, it is a Throttle
    ref = None if limit is None else LimitRef(limit, key)
    found = (throttle if ref is None else throttle[ref]).count_waiting()
    if found.waiting and "queue" in options:
        queue = options["queue"]
        if not throttle.run_plan(is_consumed(throttle.observer, throttle.qualify(queue))):
            click.echo(unconsumed_text(queue), err=True)
    confirm(
        f"{_found_text(found, limit, key)}\n{question}", yes=options["yes"] or not found.waiting
    )
    return throttle, ref


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
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def update(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield update


def _report(verb: str, done: Removal, options: dict[str, Any]) -> None:
    if options["as_json"]:
        echo_json(done)
        return
    click.echo(f"{verb} {count(done.removed, 'task')}.")
    if done.failed:
        failed = f"{_these(done.failed, 'task')} still waiting: the messages could not be used."
        click.echo(failed, err=True)
    if done.claimed:
        click.echo(f"{_these(done.claimed, 'claimed task')} left alone: workers have them.")


def _these(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'is' if number == 1 else 'are'}"
