"""``drain``, ``move``, ``drop`` and ``purge``: take waiting tasks out of their lines.

They need the app.
"""

from __future__ import annotations

from typing import Any

import click

from celery_throttle.bulk.removal.counts import Removal
from celery_throttle.cli.shared.console import confirm, echo_json, echo_result, progress_bar
from celery_throttle.cli.shared.exit_codes import ExitCode, server_errors
from celery_throttle.cli.shared.options import author_options, command, takes_ref, yes_option
from celery_throttle.cli.shared.target import Target
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.fleet import is_consumed
from celery_throttle.observe.status_text import limit_text, unconsumed_text
from celery_throttle.observe.text import REMOVALS, count

_OPTIONS = (takes_ref(or_all=True), author_options, yes_option)


@command(*_OPTIONS)
def drain(target: Target, ref: LimitRef | None, **options: Any) -> None:
    """Send waiting tasks back to the broker.

    Each task goes to the queue in whose line it waits, in the order of the line. Use this for a
    rollback, or before you uninstall this package. Workers that still enforce the limits put the
    tasks back into their lines. This command needs the app.
    """
    _remove("drain", "They go back to their queues. Drain them?", target, ref, options)


@command(
    *_OPTIONS,
    click.option("--queue", required=True, help="Queue of the app to send the tasks to."),
)
def move(target: Target, ref: LimitRef | None, **options: Any) -> None:
    """Send waiting tasks to another queue.

    This command needs the app.
    """
    question = f"They go to queue {options['queue']}. Move them?"
    _remove("move", question, target, ref, options)


@command(*_OPTIONS)
def drop(target: Target, ref: LimitRef | None, **options: Any) -> None:
    """Discard waiting tasks.

    The state of each task becomes REVOKED, unless its result is ignored. This command needs the
    app, and cannot be undone.
    """
    options["reason"] = options["reason"] or "dropped"
    _remove("drop", "They are discarded for good. Drop them?", target, ref, options)


@command(
    click.option(
        "--queue",
        "-Q",
        "queues",
        multiple=True,
        help="A queue to purge.  [default: all of the app]",
    ),
    yes_option,
)
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
    with server_errors(throttle.app.connection_for_write(), "broker"):
        discarded = throttle.purge(names)
    echo_result({"discarded": discarded}, f"Discarded {count(discarded, 'task')}.", as_json=as_json)


def _remove(
    method: str, question: str, target: Target, ref: LimitRef | None, options: dict[str, Any]
) -> None:
    """Ask unless no task waits, call the method of the limit or of all limits, and report.

    The queue of a move may have no consumer.
    """
    target.require_app("whose broker and result backend have the tasks")
    throttle: Any = target.throttle  # of an app, it is a Throttle
    yes, as_json = options.pop("yes"), options.pop("as_json")
    found = (throttle if ref is None else throttle[ref]).count_waiting()
    if "queue" in options and found.waiting:
        queue = throttle.qualify(options["queue"])
        if not target.read(lambda observer: is_consumed(observer, queue)):
            click.echo(unconsumed_text(options["queue"]), err=True)
    has_none = not found.waiting and not found.lost_shards  # which may be back in a moment
    waiting = "; ".join(found.texts("" if ref is None else limit_text(*ref)))
    confirm(f"{waiting}.\n{question}", yes=yes or has_none)
    remove = getattr(throttle, f"{method}_all") if ref is None else getattr(throttle[ref], method)
    server, name = throttle.app.connection_for_write(), "broker"
    if method == "drop":
        server, name = throttle.app.backend, "result backend"
    with server_errors(server, name), progress_bar(method.capitalize()) as progress:
        done = remove(**options, progress=progress)
    if as_json:
        echo_json(done)
    else:
        _show_done(REMOVALS[method], done)
    if done.failed:
        click.get_current_context().exit(ExitCode.FAILED)


def _show_done(verb: str, done: Removal) -> None:
    click.echo(f"{verb.capitalize()} {count(done.removed, 'task')}.")
    if done.failed:
        failed = _these(done.failed, "task")
        click.echo(f"{failed} still waiting: the messages could not be used.", err=True)
    if done.claimed:
        click.echo(f"{_these(done.claimed, 'claimed task')} left alone: workers have them.")
    if done.elsewhere:
        click.echo(f"{_these(done.elsewhere, 'task')} left alone: of queues of other brokers.")


def _these(number: int, noun: str) -> str:
    return f"{count(number, noun)} {'is' if number == 1 else 'are'}"
