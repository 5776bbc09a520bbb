"""The picture: three charts over one time axis, and the figures of the run.

From top to bottom: how many limited tasks start in a second, against what the limit allows; how
many wait; how long tasks without a limit take to start. It fits a terminal of 80 by 24 and grows
with a larger one.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from celery_throttle.demo import charts
from celery_throttle.demo.charts import Values
from celery_throttle.demo.record import TRICKLE, Record, Summary, percentile
from celery_throttle.demo.stage import PROCESSES, WORKERS

LIMITED, LINE, WAITING, PLAIN, QUIET = "#4f9fd8", "#e0a050", "#8f8bc8", "#5fb38a", "#858b95"

#: Seconds between two drawings.
REDRAW = 0.125

#: The widest picture; beyond, a line is long for the eye.
WIDEST = 110

GUTTER = 7

#: Rows of the smallest picture.
LEAST_ROWS = 23

#: Milliseconds at the top of the chart of latencies, at least: noise is no mountain.
LEAST_MS = 50.0

_THEME = TerminalTheme(
    (24, 27, 33),
    (222, 225, 230),
    [(24, 27, 33)] + [(133, 139, 149)] * 7,
    [(133, 139, 149)] * 8,
)


class LivePicture:
    """Draws in the terminal while the demo runs; the last picture stays."""

    def __init__(self) -> None:
        self._live = Live(auto_refresh=False, vertical_overflow="crop")
        self._drawn = float("-inf")

    def __enter__(self) -> LivePicture:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, record: Record) -> None:
        """Draw, unless it was just done."""
        if record.ended or record.now - self._drawn >= REDRAW:
            self._drawn = record.now
            self._live.update(Picture(record), refresh=True)


class SvgFile:
    """Saves the last picture."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, record: Record) -> None:
        """Save, once it is over."""
        if not record.ended:
            return
        console = Console(
            record=True,
            file=io.StringIO(),
            width=92,
            height=28,
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(Picture(record))
        console.save_svg(str(self._path), title="celery-throttle demo", theme=_THEME)


class Picture:
    """One picture of a run, as large as there is room."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST)
        spare = max(0, options.size.height - 1 - LEAST_ROWS)
        record = self._record
        columns = width - GUTTER
        yield Group(
            *_header(record, width),
            *_starts(record, columns, 8 + min(spare, 9) * 2 // 3),
            *_waiting(record, columns, 2 + min(spare, 9) // 3),
            *_latency(record, columns, 1 if spare < 9 else 2),
            *(Text(" " * GUTTER) + line for line in charts.axis(columns, record.planned, QUIET)),
            Text(),
            _figures(record.summary(), width),
        )


def _header(record: Record, width: int) -> list[Text]:
    if record.ended:
        status = f"finished in {record.now:.1f} s"
    elif not record.server:
        status = "starting a server and the workers"
    else:
        status = f"running on {record.server}   Ctrl-C ends it"
    return [
        _ends(Text("celery_throttle", "bold"), Text(status, QUIET), width),
        Text(f"{record.tasks} tasks share a limit of {record.limit}. {TRICKLE} a second have none."),
        Text(f"They are in one queue, for {WORKERS} workers with {PROCESSES} processes each."),
        Text(),
    ]


def _starts(record: Record, columns: int, rows: int) -> list[Text]:
    # A column shows the second that ends with it, or all of its own time if that is more.
    seconds = max(1.0, record.planned / columns)
    values = _columns(record, columns, lambda _, end: record.per_second(end, seconds))
    below = rows - 1
    chart = charts.bars(values, record.rate * rows / below, rows, LIMITED)
    most = record.limit.burst / seconds + record.rate
    chart[0] = charts.draw_line(chart[0], values, most, LINE)
    now = f"{record.per_second(record.now):.0f} in the last second"
    if record.ended:
        now = f"at most {record.fullest_second()} in one second"
    title = _title("Starts per second of the tasks with the limit", now, columns)
    label = f"{record.rate:.{0 if record.rate >= 10 else 1}f}/s"
    return [title, *_labelled(chart, {0: (label, LINE)})]


def _waiting(record: Record, columns: int, rows: int) -> list[Text]:
    def most(begin: float, end: float) -> float:
        return max((count for at, count in record.waiting if begin < at <= end), default=0)

    values = _columns(record, columns, most)
    top = max([1.0, *(count for _, count in record.waiting)])
    now = record.waiting[-1][1] if record.waiting else 0
    title = _title("Waiting, outside the broker and the workers", f"{now}", columns)
    return [title, *_labelled(charts.bars(values, top, rows, WAITING), {0: (f"{top:.0f}", QUIET)})]


def _latency(record: Record, columns: int, rows: int) -> list[Text]:
    def worst(begin: float, end: float) -> float:
        some = [started - sent for sent, started in record.plain if begin < started <= end]
        return max(some, default=0.0) * 1000

    values = _columns(record, columns, worst)
    top = max([LEAST_MS, *(value for value in values if value is not None)])
    latencies = record.latencies()
    median, high = percentile(latencies, 0.5), percentile(latencies, 0.99)
    now = "" if median is None or high is None else f"median {_ms(median)}, p99 {_ms(high)}"
    title = _title("Latency of the tasks without a limit", now, columns)
    return [title, *_labelled(charts.bars(values, top, rows, PLAIN), {0: (f"{top:.0f} ms", QUIET)})]


def _columns(
    record: Record, columns: int, value: Callable[[float, float], float]
) -> Values:
    """The value of each column that has begun, from its begin and end in seconds."""
    step = record.planned / columns
    return [
        value(number * step, min((number + 1) * step, record.now))
        if number * step < record.now
        else None
        for number in range(columns)
    ]


def _labelled(rows: list[Text], labels: dict[int, tuple[str, str]]) -> list[Text]:
    """The rows of a chart behind their gutter."""
    lines = []
    for number, row in enumerate(rows):
        label, color = labels.get(number, ("", QUIET))
        lines.append(Text(f"{label:>{GUTTER - 1}} ", color) + row)
    return lines


def _title(left: str, right: str, columns: int) -> Text:
    return Text(" " * GUTTER) + _ends(Text(left, "bold"), Text(right), columns)


def _ends(left: Text, right: Text, width: int) -> Text:
    """Two texts at the ends of a line; of the right one what fits."""
    room = max(0, width - len(left) - 2)
    right.truncate(room)
    return left + Text(" " * (width - len(left) - len(right))) + right


def _figures(summary: Summary, width: int) -> Table:
    """The figures, each above its words."""
    cells = [
        (f"{summary.tasks_ran} of {summary.tasks}", "tasks ran"),
        (_or_dash(summary.quota_used, "{:.1%}"), "of the quota used"),
        (_or_dash(summary.deliveries_per_task, "{:.2f}"), "deliveries a task"),
        (_or_dash(summary.wait_median_s, "{:.1f} s"), "median wait"),
    ]
    table = Table.grid(expand=True)
    table.width = width
    for _ in cells:
        table.add_column(ratio=1, justify="center")
    table.add_row(*(Text(value, "bold") for value, _ in cells))
    table.add_row(*(Text(words, QUIET) for _, words in cells))
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _ms(seconds: float) -> str:
    ms = seconds * 1000
    return f"{ms:.{1 if ms < 10 else 0}f} ms"


