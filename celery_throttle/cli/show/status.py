"""``ls`` and ``show``: the status of all limits, and all about one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from celery_throttle.cli.shared.console import echo_json, echo_pairs, terminal_width
from celery_throttle.cli.shared.options import json_option, key_argument, limit_argument
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.show.status_view import details_pairs, status_lines
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.stored import is_stored
from celery_throttle.observe.status_text import nothing_stored_text, ref_text, to_json
from celery_throttle.observe.values import Status

#: How many limits one call of the API returns.
_PAGE_SIZE = 1000


def status_fields(status: Status) -> dict[str, Any]:
    """Return a status as JSON. It has all pages, so it does not say where the next one begins."""
    fields: dict[str, Any] = to_json(status)
    del fields["next"]
    return fields


def read_status(target: Target) -> Status:
    """Return the status of all limits, with the names of queues as they are shown."""
    status = page = target.throttle.status(most=_PAGE_SIZE)
    while page.next is not None:
        page = target.throttle.status(after=page.next, most=_PAGE_SIZE)
        status = replace(
            status,
            limits=status.limits + page.limits,
            stranded=tuple(dict.fromkeys(status.stranded + page.stranded)),
        )
    stranded = tuple(
        replace(one, queue=target.queue_name(one.queue), what=target.queue_name(one.what))
        for one in status.stranded
    )
    return replace(status, next=None, stranded=stranded)


@click.command()
@json_option
@pass_target
def ls(target: Target, *, as_json: bool) -> None:
    """List all limits.

    Shows, for each limit, the definition in force and its origin, the units in use, the waiting
    tasks and the pauses. Also shows waiting tasks that no live worker can start.
    """
    status = read_status(target)
    if as_json:
        echo_json(status_fields(status))
    else:
        for line in status_lines(status, terminal_width()):
            click.echo(line)


@click.command()
@limit_argument
@key_argument
@json_option
@pass_target
def show(target: Target, limit: str, key: str | None, *, as_json: bool) -> None:
    """Show the details of a limit, or of one key of it."""
    ref = LimitRef(limit, key)
    details = target.throttle[ref].status()
    queues = tuple(replace(one, name=target.queue_name(one.name)) for one in details.queues)
    details = replace(details, queues=queues)
    if as_json:
        echo_json(details)
    else:
        click.secho(ref_text(ref), bold=True)
        if not target.throttle.run_plan(is_stored(target.throttle.observer, ref)):
            click.echo(nothing_stored_text(ref))
        echo_pairs(details_pairs(details))
