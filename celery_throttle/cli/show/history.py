"""``history``: the changes of limits, and who made them."""

from __future__ import annotations

import click

from celery_throttle.cli.shared.console import Row, Table, echo_json, echo_table
from celery_throttle.cli.shared.options import json_option
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import clock, zone
from celery_throttle.observe.status_text import change_text
from celery_throttle.observe.text import describe_subject
from celery_throttle.observe.values import Change


@click.command()
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Number of changes to list.",
)
@click.option(
    "--before", metavar="ID", help="List only changes older than this one. --json shows the IDs."
)
@json_option
@pass_target
def history(target: Target, *, most: int, before: str | None, as_json: bool) -> None:
    """List the changes of limits.

    The newest change comes first. The server keeps the last 1,000 changes.
    """
    changes = target.throttle.changes(most=most, before=before)
    if as_json:
        echo_json({"changes": changes})
    elif not changes:
        click.echo("No changes.")
    else:
        echo_table(
            Table(
                (f"time ({zone()})", "limit", "action", "change", "by"),
                [_row(change) for change in changes],
                flexible=3,
            )
        )


def _row(change: Change) -> Row:
    by = change.author.by if change.author else "-"
    reason = [change.author.reason] if change.author and change.author.reason else []
    return Row(
        (clock(change.at), describe_subject(change.limit), change.action, change_text(change), by),
        reason,
    )
