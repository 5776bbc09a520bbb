"""Bar charts over one time axis: as characters in the terminal, and drawn to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from celery_throttle.errors import require_extra

BLUE, ORANGE, GRAY, GREEN = "#4a90c2", "#d9984a", "#858b95", "#5aa884"

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_SUFFIXES = (".svg", ".png", ".pdf")

#: Inches: the width, the height of a chart, and the height of what is no chart.
_WIDTH, _CHART_HEIGHT, _OTHER_HEIGHT = 9.0, 0.85, 0.8

#: The height of the part below the line, and the least height that shows, as shares of the part
#: above the line.
_BELOW, _MIN_HEIGHT = 0.3, 0.03

#: The most ticks of the time axis, and the steps between them, times a power of ten.
_MAX_TICKS, _TICK_STEPS = 12, [1, 1.5, 3, 6, 10]

_STYLE = {
    "axes.spines.bottom": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titlepad": 3,
    "font.size": 8,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "celery_throttle",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A bar chart of values in steps of time."""

    title: str  #: what it shows
    values: Sequence[float]  #: the height of each bar, 0 or more
    color: str  #: of the bars
    note: str = ""  #: figures at the right of the title
    top: float = 0.0  #: the height of the chart; 0 for that of the highest bar
    #: Shares from 0 to 1, one for each bar, that a file shows below the line; or empty.
    shares: Sequence[float] = ()
    #: Begin and end of a shaded time, in the unit of the time axis; None for none.
    shaded: tuple[float, float] | None = None

    @property
    def height(self) -> float:
        """The value that fills the chart."""
        return max(self.top, *self.values) or 1.0


def sparkline(values: Sequence[float]) -> str:
    """Return a bar of one character for each value; the highest bar is the greatest value."""
    (row,) = bar_rows(values, max(values, default=0) or 1.0, 1)
    return row


def bar_rows(values: Sequence[float], top: float, rows: int) -> list[str]:
    """Return bars as rows of characters, the upper row first. ``top``: fills all rows.

    A value of 0 has a small bar in the lowest row, as an axis.
    """
    bars = _BARS if "utf" in (sys.stdout.encoding or "ascii").lower() else _ASCII_BARS
    steps = [min(int(value / top * len(bars) * rows) + 1, len(bars) * rows) for value in values]
    return [
        "".join((" " + bars)[min(max(step - below, 0), len(bars))] for step in steps)
        for below in range((rows - 1) * len(bars), -1, -len(bars))
    ]


def _check_plot(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    """Raise an error if charts cannot be drawn to a file, before the command does its work."""
    if path is None:
        return None
    if path.suffix.lower() not in _SUFFIXES:
        allowed = ", ".join(_SUFFIXES)
        raise click.UsageError(f"{path} cannot be drawn; allowed: a name that ends in {allowed}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise click.UsageError(
            f"cannot write {path}: there is no such directory, or it is not yours"
        )
    with require_extra("matplotlib", "a plot", "plot"):
        import matplotlib as mpl  # noqa: F401, PLC0415  # an extra
    return path


plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_check_plot,
    help="Also draw charts to this file: .svg, .png or .pdf. Needs the extra plot.",
)


def save(path: Path, charts: Sequence[Chart], edges: Sequence[Any], label: str) -> None:
    """Draw charts to a file. ``edges``: of the bars, numbers or times; ``label``: of their axis."""
    from matplotlib import style  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # an extra

    with style.context(["default", _STYLE]):
        size = (_WIDTH, _OTHER_HEIGHT + _CHART_HEIGHT * len(charts))
        figure = Figure(figsize=size, layout="constrained")
        lanes = figure.subplots(len(charts), sharex=True, squeeze=False)[:, 0]
        for lane, chart in zip(lanes, charts, strict=True):
            _draw(lane, chart, edges)
        lanes[-1].set_xlim(edges[0], edges[-1])
        if not hasattr(edges[0], "year"):
            lanes[-1].xaxis.set_major_locator(MaxNLocator(_MAX_TICKS, steps=_TICK_STEPS))
        lanes[-1].set_xlabel(label)
        suffix = path.suffix.lower()
        # So that equal charts are equal files.
        metadata = {"Date": None, "Creator": None} if suffix == ".svg" else {}
        figure.savefig(path, format=suffix[1:], metadata=metadata)


def _draw(lane: Any, chart: Chart, edges: Sequence[Any]) -> None:
    top = chart.height
    least, below = _MIN_HEIGHT * top, _BELOW * top
    lane.set_title(chart.title, loc="left", fontweight="bold")
    lane.set_title(chart.note, loc="right")
    if chart.shaded is not None:
        lane.axvspan(*chart.shaded, color=chart.color, alpha=0.15, linewidth=0)
    bars = [value and max(value, least) for value in chart.values]
    lane.stairs(bars, edges, fill=True, color=chart.color, linewidth=0)
    if chart.shares:
        shares = [share and min(-share * below, -least) for share in chart.shares]
        lane.stairs(shares, edges, fill=True, color=ORANGE, linewidth=0)
    lane.set_ylim(-1.05 * below if chart.shares else 0, 1.05 * top)
    lane.set_yticks([0, top], ["0", f"{top:,g}"])
    lane.axhline(0, color=GRAY, linewidth=0.5)
    lane.tick_params(axis="x", length=0)
