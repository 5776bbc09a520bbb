"""The plot of a simulation: arrivals at the top, one lane per limit, over one time axis.

Each column of a lane shows what started in a short time; below the line, the share of the arrivals
of that time that was refused. The fullest window of a limit is shaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from celery_throttle.cli.demo.record import round_steps
from celery_throttle.cli.simulation.figures import figures, fullest
from celery_throttle.cli.simulation.run import SimulatedRun, window
from celery_throttle.cli.simulation.times import format_seconds
from celery_throttle.cli.simulation.traces import Arrival, Trace
from celery_throttle.cli.simulation.views import Simulation, fullest_words
from celery_throttle.limits.cost import MILLION, to_millionths
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.grammar import CONCURRENCY

ARRIVALS, ADMITTED, REFUSED, FULLEST = "#858b95", "#4a90c2", "#d9984a", "#e9f1f8"

#: The supported suffixes, and the metadata to omit so that equal plots are equal files.
FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}

#: The most columns of a lane.
_MAX_COLUMNS = 125

#: The filled part of the width of a column.
_BAR_WIDTH = 0.85

#: The most ticks of the time axis, and round steps between them from 15 seconds on.
_MAX_TICKS = 12
_TICK_STEPS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604800)

#: Inches: the width, the height of a lane, and the height of what is not a lane.
_WIDTH, _LANE_HEIGHT, _OTHER_HEIGHT = 9.0, 0.85, 0.8

#: The height of the part below the line, and the least height that shows, as shares of the part
#: above the line.
_BELOW, _MIN_HEIGHT = 0.3, 0.03

_STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.titlepad": 3,
    "font.size": 8,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "celery_throttle",
}


class Bins:
    """Divides the time into columns of equal width."""

    def __init__(self, trace: Trace, runs: Sequence[SimulatedRun]) -> None:
        last = max(
            trace.arrivals[-1].time, *(start for run in runs for start, _ in run.admitted[-1:])
        )
        self.origin = trace.origin
        #: Microseconds per column.
        self.width = next(
            width for width in round_steps() if width * _MAX_COLUMNS > last - self.origin
        )
        self.count = (last - self.origin) // self.width + 1

    def after(self, columns: float) -> float:
        """Return seconds from the origin to the end of this number of columns."""
        return columns * self.width / MICROSECONDS

    def units(self, arrivals: Iterable[tuple[int, Arrival]]) -> list[float]:
        """Return the units in each column."""
        sums = [0] * self.count
        for time, arrival in arrivals:
            sums[(time - self.origin) // self.width] += to_millionths(arrival.cost)
        return [amount / MILLION for amount in sums]


def save(simulation: Simulation, path: Path) -> None:
    """Draw to a file whose suffix is one of ``FORMATS``."""
    trace, runs = simulation.trace, simulation.runs
    bins = Bins(trace, runs)
    with style.context(["default", _STYLE]):
        height = _OTHER_HEIGHT + _LANE_HEIGHT * (len(runs) + 1)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        lanes: Sequence[Axes] = list(figure.subplots(len(runs) + 1, 1, sharex=True))
        arrived = bins.units((one.time, one) for one in trace.arrivals)
        _bars(lanes[0], bins, arrived, ARRIVALS)
        _scale(lanes[0], max(arrived))
        lanes[0].set_title(f"arrivals: {len(trace.arrivals):,}", loc="left")
        started = [bins.units(run.admitted) for run in runs]
        top = max(map(max, started))
        for lane, run, units in zip(lanes[1:], runs, started, strict=True):
            _draw_lane(lane, bins, run, (units, arrived), top)
        lanes[-1].set_xlim(0, bins.after(bins.count))
        _set_ticks(lanes[-1], bins.count * bins.width)
        lanes[-1].set_xlabel(_axis(trace, bins))
        figure.savefig(path, format=path.suffix[1:].lower(), metadata=FORMATS[path.suffix.lower()])


def _axis(trace: Trace, bins: Bins) -> str:
    since = f" since {trace.format_time(trace.origin)}" if trace.origin else ""
    return (
        f"seconds{since}; a column is {format_seconds(bins.width)} s; below the line: "
        "share of the arrivals that is refused; shaded: the fullest window"
    )


def _set_ticks(lane: Axes, span: int) -> None:
    """Set ticks at round times, up to a number of microseconds."""
    below_10_s = islice(round_steps(), 21)
    steps = (*below_10_s, 10 * MICROSECONDS, *(step * MICROSECONDS for step in _TICK_STEPS))
    step = next((step for step in steps if step * _MAX_TICKS >= span), span)
    ticks = range(0, span + 1, step)
    lane.set_xticks(
        [tick / MICROSECONDS for tick in ticks], [format_seconds(tick) for tick in ticks]
    )


def _draw_lane(
    lane: Axes, bins: Bins, run: SimulatedRun, amounts: tuple[list[float], list[float]], top: float
) -> None:
    started, arrived = amounts
    found = figures(run)
    most = fullest_words(found, run)
    words = f"{found.admitted:,} admitted, {found.refused:,} refused, at most {most}"
    lane.set_title(found.limit, loc="left", fontweight="bold")
    lane.set_title(words, loc="right")
    if run.limit.algorithm != CONCURRENCY:
        start = (fullest(run).start - bins.origin) / MICROSECONDS
        lane.axvspan(
            start, start + window(run.limit, run.slot_us) / MICROSECONDS, color=FULLEST, linewidth=0
        )
    _bars(lane, bins, [value and max(value, _MIN_HEIGHT * top) for value in started], ADMITTED)
    refused = bins.units((one.time, one) for one in run.refused)
    shares = [
        -_BELOW * top * gone / came if came else 0.0
        for gone, came in zip(refused, arrived, strict=True)
    ]
    _bars(lane, bins, [share and min(share, -_MIN_HEIGHT * top) for share in shares], REFUSED)
    _scale(lane, top, below=_BELOW)


def _bars(lane: Axes, bins: Bins, values: Sequence[float], color: str) -> None:
    """Draw all bars as one outline: a file with an element for each would be large."""
    corners = [
        [(left, 0.0), (left, value), (right, value), (right, 0.0)]
        for number, value in enumerate(values)
        if value
        for left, right in [(bins.after(number), bins.after(number + _BAR_WIDTH))]
    ]
    if corners:
        outline = Outline.make_compound_path_from_polys(np.array(corners))
        lane.add_patch(PathPatch(outline, facecolor=color, linewidth=0))


def _scale(lane: Axes, top: float, below: float = 0.0) -> None:
    lane.set_ylim(-1.05 * below * top, 1.05 * top)
    lane.set_yticks([0, top], ["0", f"{top:,g}"])
    lane.axhline(0, color=ARRIVALS, linewidth=0.5)
    lane.spines["bottom"].set_visible(False)
    lane.tick_params(axis="x", length=0)
