"""``history`` and ``report``: what was changed, and whether a limit is right."""

from __future__ import annotations

from pathlib import Path

import click

from celery_throttle.cli.shared import charts
from celery_throttle.cli.shared.charts import Chart, sparkline
from celery_throttle.cli.shared.console import Row, Table, echo_json, echo_pairs, echo_table
from celery_throttle.cli.shared.options import SECONDS, command, limit_argument, most_option
from celery_throttle.cli.shared.target import Target
from celery_throttle.cli.shared.text import clock, zone
from celery_throttle.errors import shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.report import (
    Report,
    advice_text,
    make_report,
    read_recorded,
    report_pairs,
)
from celery_throttle.observe.status.stored import CHANGE_ID, read_history
from celery_throttle.observe.status_text import change_text
from celery_throttle.observe.text import describe_subject
from celery_throttle.observe.values import Change


def _check_id(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    if text is not None and not CHANGE_ID.fullmatch(text):
        raise click.BadParameter(f"{shown(text)} is not the ID of a change; --json shows the IDs")
    return text


@command(
    most_option(20, "changes"),
    click.option(
        "--before",
        metavar="ID",
        callback=_check_id,
        help="List only changes older than this one. --json shows the IDs.",
    ),
)
def history(target: Target, *, most: int, before: str | None, as_json: bool) -> None:
    """List the changes of limits, and the last 429 of each limit.

    The newest comes first. The server keeps the last 1,000 changes.
    """
    changes = target.read(lambda observer: read_history(observer, most, before))[:most]
    if as_json:
        echo_json({"changes": changes})
    elif not changes:
        click.echo("No changes.")
    else:
        head = (f"time ({zone()})", "limit", "key", "action", "change", "by")
        echo_table(Table(head, [_row(change) for change in changes], flexible=4))


def _row(change: Change) -> Row:
    by, reason = (change.author.by, change.author.reason) if change.author else ("-", None)
    subject, _, key = describe_subject(change.limit).partition(":")
    cells = (clock(change.at), subject, key or "-", change.action, change_text(change), by)
    return Row(cells, [reason] if reason else [])


@command(
    limit_argument(),
    click.option(
        "--since",
        type=SECONDS,
        default="24h",
        show_default=True,
        help="Length of the period to report on, up to a week.",
    ),
    charts.plot_option,
)
def report(target: Target, limit: str, since: float, plot: Path | None, *, as_json: bool) -> None:
    """Report whether a limit is too strict or too loose.

    The report covers all keys of the limit, and ends with one piece of advice.
    """
    ref = LimitRef(limit, None)
    found = make_report(target.read(lambda observer: read_recorded(observer, limit, since), ref))
    if plot is not None:
        _draw(found, plot)
    if as_json:
        echo_json(found)
        return
    start, end = found.periods[0].start, found.periods[-1].end
    is_young = (end - start).total_seconds() < since - 1
    about = ": since it came into force, or was first recorded" if is_young else ""
    click.secho(f"limit {limit}: {'; '.join(found.clauses) or 'not defined'}", bold=True)
    echo_pairs(
        [
            (f"time ({zone()})", f"{clock(start)} to {clock(end)}{about}"),
            *report_pairs(found),
            ("granted", sparkline([period.totals.granted for period in found.periods])),
            ("waiting", sparkline([period.most_waiting for period in found.periods])),
        ]
    )
    click.echo(f"\n{advice_text(found)}")


def _draw(report: Report, path: Path) -> None:
    totals = [period.totals for period in report.periods]
    lanes = [
        Chart("units granted", [one.granted for one in totals], charts.BLUE),
        Chart("refused or dropped", [one.refusals + one.drops for one in totals], charts.ORANGE),
        Chart("tasks waiting", [period.most_waiting for period in report.periods], charts.GRAY),
    ]
    edges = [report.periods[0].start, *(period.end for period in report.periods)]
    charts.save(path, lanes, edges, f"limit {report.name}: {'; '.join(report.clauses)} (UTC)")
