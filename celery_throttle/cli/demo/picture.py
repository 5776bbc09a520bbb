"""The picture: three charts over one time axis, and the figures of the run.

From top to bottom: starts per second of limited tasks and what the limit allows; waiting tasks;
latency of tasks without a limit. It fits a terminal of 80 by 24 and grows with a larger one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from html import unescape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from celery_throttle.cli.demo import charts
from celery_throttle.cli.demo.record import PLAIN_TASKS_PER_SECOND, Record, Summary, format_figure
from celery_throttle.cli.demo.stage import PROCESSES, WORKERS

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

LIMITED, LINE, WAITING, PLAIN, QUIET = "#4a90c2", "#d9984a", "#8683b8", "#5aa884", "#858b95"

#: Seconds between two redraws.
REDRAW_SECONDS = 0.125

#: Columns of the largest picture, and of the labels at its left.
MAX_WIDTH, GUTTER = 110, 7

#: Rows of the smallest picture and of the largest.
MIN_ROWS, MAX_ROWS = 23, 38

#: The least top of the latency chart, in milliseconds, so that noise stays small.
MIN_TOP_MS = 20.0

#: Size of a character in an SVG of rich, and how far its row reaches below the baseline.
_SVG_COLUMN, _SVG_ROW, _SVG_DESCENT = 12.2, 24.4, 5.9

#: Bars in such an SVG: their style, position, and characters.
_BAR_TEXT = re.compile(
    rf'<text class="([^"]+)" x="([\d.]+)" y="([\d.]+)"[^>]*>((?:&#160;|[{charts.BARS}])+)</text>'
)

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

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, record: Record) -> None:
        """Draw it, at most every ``REDRAW_SECONDS``."""
        if record.ended or record.now - self._drawn >= REDRAW_SECONDS:
            self._drawn = record.now
            self._live.update(Picture(record), refresh=True)


class SvgFile:
    """Saves the last picture."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, record: Record) -> None:
        """Save the picture of a record that has ended."""
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
        svg = console.export_svg(title="celery-throttle demo", theme=_THEME)
        self._path.write_text(_BAR_TEXT.sub(_draw_bars, svg), encoding="utf-8")


def _draw_bars(text: re.Match[str]) -> str:
    """Return bars of characters as rectangles: fonts draw the characters with gaps between them."""
    style, left, baseline, characters = text.groups()
    bottom = float(baseline) + _SVG_DESCENT
    rectangles, column = [], 0
    for character, run in groupby(unescape(characters)):
        width = len(list(run))
        if character in charts.BARS:
            height = (charts.BARS.index(character) + 1) / len(charts.BARS) * _SVG_ROW
            x = float(left) + column * _SVG_COLUMN
            rectangles.append(
                f'<rect class="{style}" x="{x:.1f}" y="{bottom - height:.2f}" '
                f'width="{width * _SVG_COLUMN:.1f}" height="{height:.2f}" '
                'shape-rendering="crispEdges"/>'
            )
        column += width
    return "".join(rectangles)


class Picture:
    """One picture of a run, as large as the terminal allows."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, MAX_WIDTH)
        spare = min(MAX_ROWS, options.size.height - 1) - MIN_ROWS
        gap = [Text()] if spare > 1 else []
        more = max(0, spare - 2)
        record = self._record
        summary = record.summary()
        columns = width - GUTTER
        lines = Group(
            *_header(record, width),
            *_starts(record, columns, 8 + more - more // 3),
            *gap,
            *_waiting(record, columns, 2 + more // 3 - more // 6),
            *gap,
            *_latency(record, summary, columns, 1 + more // 6),
            *(
                Text(" " * GUTTER) + line
                for line in charts.draw_axis(columns, record.planned, QUIET)
            ),
            Text(),
            _figures(summary, width),
        )
        yield from console.render(lines, options.update(no_wrap=True, overflow="ellipsis"))


def _header(record: Record, width: int) -> list[Text]:
    if record.ended:
        status = f"finished in {record.now:.1f} s"
    elif not record.server:
        status = "starting a server and the workers"
    else:
        status = f"running on {record.server}   Ctrl-C ends it"
    return [
        _ends(Text("celery_throttle", "bold"), Text(status, QUIET), width),
        Text.assemble(
            (f"{record.tasks} tasks", LIMITED),
            " share ",
            (f"a limit of {record.limit}", LINE),
            "; ",
            (f"{PLAIN_TASKS_PER_SECOND} tasks a second", PLAIN),
            " have none.",
        ),
        Text(f"All are in one queue, for {WORKERS} workers with {PROCESSES} processes each."),
        Text(),
    ]


def _starts(record: Record, columns: int, rows: int) -> list[Text]:
    # A column shows the second that ends with it, or its whole time if that is longer.
    seconds = max(1.0, record.planned / columns)
    step = record.planned / columns
    ends = [min((number + 1) * step, record.now) for number in range(_begun(record, columns))]
    values = [record.per_second(end, seconds) for end in ends]
    below = rows - 1
    chart = charts.draw_bars(values, record.rate * rows / below, rows, LIMITED)
    most = record.limit.burst / seconds + record.rate
    chart[0] = charts.draw_line(chart[0], values, most, columns, LINE)
    now = f"{record.per_second(record.now):.0f} in the last second"
    if record.ended:
        now = f"at most {record.fullest_second()} in one second"
    title = _title("Starts per second of the tasks with the limit", now, columns)
    return [title, *_labelled(chart, f"{record.rate:.6g}"[: GUTTER - 1], LINE)]


def _waiting(record: Record, columns: int, rows: int) -> list[Text]:
    values = _highest(record.waiting, record, columns)
    top = record.tasks
    now = f"{record.waiting[-1][1] if record.waiting else 0} of {top}"
    if record.ended:
        now = f"at most {max((count for _, count in record.waiting), default=0)} of {top}"
    title = _title("Waiting in the line, outside broker and workers", now, columns)
    return [title, *_labelled(charts.draw_bars(values, top, rows, WAITING), f"{top}")]


def _latency(record: Record, summary: Summary, columns: int, rows: int) -> list[Text]:
    latencies = [(started, (started - sent) * 1000) for sent, started in record.plain]
    values = _highest(latencies, record, columns)
    top = max(MIN_TOP_MS, *values)
    now = (
        f"median {format_figure(summary.plain_median_ms, '{:.1f} ms')}, "
        f"p99 {format_figure(summary.plain_p99_ms, '{:.1f} ms')}"
    )
    title = _title("Latency of the tasks without a limit", now, columns)
    return [title, *_labelled(charts.draw_bars(values, top, rows, PLAIN), f"{top:.0f} ms")]


def _highest(points: Iterable[tuple[float, float]], record: Record, columns: int) -> list[float]:
    """Return the highest value of each column that has begun, from pairs of time and value.

    A column without a point repeats the one before.
    """
    found: dict[int, float] = {}
    for at, value in points:
        column = int(at / record.planned * columns)
        found[column] = max(value, found.get(column, 0.0))
    values: list[float] = []
    for column in range(_begun(record, columns)):
        values.append(found.get(column, values[-1] if values else 0.0))
    return values


def _begun(record: Record, columns: int) -> int:
    """Return the number of columns that have begun."""
    return min(columns, int(record.now / record.planned * columns) + 1)


def _labelled(rows: list[Text], label: str, color: str = QUIET) -> list[Text]:
    """Return the rows of a chart with a label left of the upper one."""
    labels = [label] + [""] * (len(rows) - 1)
    return [
        Text(f"{label:>{GUTTER - 1}} ", color) + row
        for label, row in zip(labels, rows, strict=True)
    ]


def _title(left: str, right: str, columns: int) -> Text:
    return Text(" " * GUTTER) + _ends(Text(left, "bold"), Text(right), columns)


def _ends(left: Text, right: Text, width: int) -> Text:
    """Return a line with two texts at its ends. The right one is truncated."""
    right.truncate(max(0, width - len(left) - 2))
    return Text.assemble(left, " " * (width - len(left) - len(right)), right)


def _figures(summary: Summary, width: int) -> Table:
    """Return the figures, each above its name."""
    cells = [
        (f"{summary.tasks_ran} of {summary.tasks}", "tasks ran"),
        (format_figure(summary.quota_used, "{:.1%}"), "quota used"),
        (format_figure(summary.deliveries_per_task, "{:.2f}"), "deliveries per task"),
        (format_figure(summary.wait_median_s, "{:.1f} s"), "median wait"),
    ]
    table = Table.grid(expand=True)
    table.width = width
    for _ in cells:
        table.add_column(ratio=1, justify="center", no_wrap=True)
    table.add_row(*(Text(value, "bold") for value, _ in cells))
    table.add_row(*(Text(words, QUIET) for _, words in cells))
    return table
