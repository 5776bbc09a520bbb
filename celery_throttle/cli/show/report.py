"""``report``: is a limit effective, too strict or too loose?"""

from __future__ import annotations

from pathlib import Path

import click

from celery_throttle.cli.shared.console import echo_json, echo_pairs
from celery_throttle.cli.shared.options import json_option, limit_argument, to_seconds
from celery_throttle.cli.shared.params import DurationType
from celery_throttle.cli.shared.target import Target, pass_target
from celery_throttle.cli.shared.text import clock, sparkline, zone
from celery_throttle.errors import require_extra
from celery_throttle.observe.report import advice_text, report_pairs


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
            from celery_throttle.cli.show.report_plot import draw  # noqa: PLC0415  # an extra

        draw(found, plot)
    if as_json:
        echo_json(found)
        return
    start, end = found.periods[0].start, found.periods[-1].end
    click.secho(f"limit {limit}: {'; '.join(found.clauses) or 'not defined'}", bold=True)
    echo_pairs(
        [
            (f"time ({zone()})", f"{clock(start)} to {clock(end)}"),
            *report_pairs(found),
            ("granted", sparkline([period.totals.granted for period in found.periods])),
            ("waiting", sparkline([period.most_waiting for period in found.periods])),
        ]
    )
    click.echo(f"\n{advice_text(found)}")
