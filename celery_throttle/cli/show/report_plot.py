"""The plot of a report: units granted, refusals, and waiting tasks, over one time axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from celery_throttle.cli.shared.exit_codes import CommandError, ExitCode
from celery_throttle.observe.report import Report

_COLORS = {"granted": "#4a90c2", "refused": "#d9984a", "waiting": "#858b95"}

#: Inches.
_SIZE = (9.0, 4.5)


def draw(report: Report, path: Path) -> None:
    """Draw a report to a file, whose suffix says the format.

    Raises:
        CommandError: the format is not supported.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    supported = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in supported:
        raise CommandError(
            f"{path} cannot be drawn; allowed: a file name that ends with .svg, .png or .pdf",
            ExitCode.USAGE,
        )
    starts = [period.start for period in report.periods]
    widths = [period.end - period.start for period in report.periods]
    lanes = {
        "granted": [period.totals.granted for period in report.periods],
        "refused": [period.totals.refusals + period.totals.drops for period in report.periods],
        "waiting": [period.most_waiting for period in report.periods],
    }
    axes = figure.subplots(len(lanes), sharex=True)
    for lane, (name, heights) in zip(axes, lanes.items(), strict=True):
        times: Any = starts, widths  # matplotlib takes them; its stubs know numbers only
        lane.bar(times[0], heights, times[1], align="edge", color=_COLORS[name])
        lane.set_ylabel(name)
        lane.spines[["top", "right"]].set_visible(False)
    axes[0].set_title(f"{report.name}  {'; '.join(report.clauses)}  (UTC)", loc="left")
    figure.savefig(path)
