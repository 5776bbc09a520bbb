"""``report``: is a limit effective, too strict or too loose?"""

from __future__ import annotations

from pathlib import Path

import click

from celery_throttle.cli.console import echo_json, echo_pairs
from celery_throttle.cli.options import json_option, limit_argument, to_seconds
from celery_throttle.cli.params import DurationType
from celery_throttle.cli.target import Target, pass_target
from celery_throttle.cli.text import amount, clock, sparkline, zone
from celery_throttle.extras import require_extra
from celery_throttle.observe.report import Report, format_share
from celery_throttle.observe.text import format_seconds
from celery_throttle.observe.totals import Totals

_REFUSALS = {
    "limit": "by the limit",
    "slots": "for lack of a slot",
    "paused": "by a pause",
    "keys": "by max-keys",
    "cost": "as too costly",
}
_DROPS = {
    "late": "by throttle_max_wait",
    "full": "by max-waiting",
    "keys": "by max-keys",
    "cost": "as too costly",
}


@click.command()
@limit_argument
@click.option(
    "--since",
    type=DurationType(),
    default="24h",
    show_default=True,
    help="Length of the period to report on, up to a week.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also draw the report to this file: .svg, .png or .pdf.",
)
@json_option
@pass_target
def report(target: Target, limit: str, since: int, plot: Path | None, *, as_json: bool) -> None:
    """Report whether a limit is too strict or too loose.

    The report covers all keys of the limit, and ends with one piece of advice.
    """
    found = target.throttle[limit].report(to_seconds(since) or 0.0)
    if plot is not None:
        with require_extra("matplotlib", "a plot", "plot"):
            from celery_throttle.cli.report_plot import draw  # noqa: PLC0415  # an extra

        draw(found, plot)
    if as_json:
        echo_json(found)
        return
    start, end = found.periods[0].start, found.periods[-1].end
    click.secho(f"limit {limit}: {'; '.join(found.clauses) or 'not defined'}", bold=True)
    echo_pairs(
        [
            (f"time ({zone()})", f"{clock(start)} to {clock(end)}"),
            *_use_pairs(found),
            *_task_pairs(found),
            ("granted", sparkline([period.totals.granted for period in found.periods])),
            ("waiting", sparkline([period.waiting for period in found.periods])),
        ]
    )
    click.echo(f"\n{found.verdict.capitalize()}. {found.advice}")


def _use_pairs(found: Report) -> list[tuple[str, str]]:
    totals = found.totals
    use = "" if found.use is None else f", {format_share(found.use)} of what it allows"
    pairs = [
        ("units granted", f"{amount(totals.granted)}{use}"),
        ("at the limit", f"{format_share(found.at_limit)} of the time"),
        ("calls refused", _reasons(totals.refused, _REFUSALS)),
        ("refused by API", f"{totals.api_refusals:,}"),
    ]
    if any(clause.endswith(" shadow") for clause in found.clauses):
        pairs.append(("by the shadow", f"{totals.shadow_refused:,} would have been refused"))
    return pairs


def _task_pairs(found: Report) -> list[tuple[str, str]]:
    totals: Totals = found.totals
    waits = "none from lines"
    if found.median_wait is not None and found.long_wait is not None:
        half, most = format_seconds(found.median_wait), format_seconds(found.long_wait)
        waits = f"half up to {half}, 95% up to {most}"
    return [
        ("tasks that waited", f"{totals.parked:,}"),
        ("waits", waits),
        ("tasks dropped", _reasons(totals.dropped, _DROPS)),
    ]


def _reasons(counts: tuple[tuple[str, int], ...], texts: dict[str, str]) -> str:
    """Return ``"12: 10 by the limit, 2 by a pause"``."""
    total = sum(number for _, number in counts)
    parts = [f"{number:,} {texts[reason]}" for reason, number in counts if number]
    return f"{total:,}: {', '.join(parts)}" if parts else f"{total:,}"
