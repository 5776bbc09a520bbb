"""A run of the demo as three charts over one time axis: in a terminal, or drawn to a file.

From top to bottom: starts per second of limited tasks; waiting tasks; latency of tasks without a
limit. In a terminal, they have 80 by 24 characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from celery_throttle.cli.demo.record import PLAIN_TASKS_PER_SECOND, Record
from celery_throttle.cli.demo.run import PROCESSES, WORKERS
from celery_throttle.cli.shared import charts
from celery_throttle.cli.shared.charts import Chart, bar_rows
from celery_throttle.cli.shared.text import format_figure

#: Columns of the widest picture, and of the labels at its left.
MAX_WIDTH, GUTTER = 110, 7

_ROWS = (8, 3, 3)

#: The least top of the latency chart, in milliseconds, so that noise stays small.
_MIN_TOP_MS = 20.0


def _intro(record: Record) -> str:
    return (
        f"{record.tasks} tasks share a limit of {record.limit}, "
        f"{PLAIN_TASKS_PER_SECOND} a second have none."
    )


def picture(record: Record, width: int) -> Iterator[str]:
    """Yield the lines of a picture for a terminal of this width."""
    columns = max(1, min(width, MAX_WIDTH) - GUTTER)
    status = "starting a server and the workers"
    if record.ended:
        status = f"finished in {record.now:.1f} s"
    elif record.server:
        status = f"running on {record.server}   Ctrl-C ends it"
    yield _ends("celery_throttle", status, GUTTER + columns)
    yield _intro(record)
    yield f"All are in one queue, for {WORKERS} workers with {PROCESSES} processes each."
    for chart, rows in zip(_charts(record, columns), _ROWS, strict=True):
        yield " " * GUTTER + _ends(chart.title, chart.note, columns)
        red, green, blue = bytes.fromhex(chart.color[1:])
        for number, row in enumerate(bar_rows(chart.values, chart.height, rows)):
            label = "" if number else f"{chart.height:.6g}"[: GUTTER - 1]
            yield f"{label:>{GUTTER - 1}} {click.style(row, fg=(red, green, blue))}"
    end = f"{record.planned:.0f} s"
    yield f"{' ' * GUTTER}0 s{end:>{max(0, columns - 3)}}"


def figure_pairs(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run in words, with their names."""

    def text(name: str, form: str) -> str:
        return format_figure(figures[name], form)

    ran = f"{figures['tasks_ran']} of {figures['tasks']} ran, {figures['limit']}"
    second = f"{figures['fullest_second']} starts, {figures['fullest_second_allowed']} allowed"
    waits = (
        f"median {text('wait_median_s', '{:.1f} s')}, longest {text('wait_longest_s', '{:.1f} s')}"
    )
    return [
        ("tasks under the limit", ran),
        ("quota used", text("quota_used", "{:.1%}")),
        ("fullest second", second),
        ("broker deliveries per task", text("deliveries_per_task", "{:.2f}")),
        ("wait under the limit", waits),
        ("latency without a limit", f"{_latency_text(figures)}, while the others waited"),
    ]


def _latency_text(figures: Mapping[str, Any]) -> str:
    seconds = (figures["plain_median_s"], figures["plain_p99_s"])
    median, slowest = ("-" if one is None else f"{one * 1000:.1f} ms" for one in seconds)
    return f"median {median}, p99 {slowest}"


def save(record: Record, path: Path) -> None:
    """Draw the charts to a file."""
    edges = [number * record.planned / MAX_WIDTH for number in range(MAX_WIDTH + 1)]
    charts.save(path, _charts(record, MAX_WIDTH), edges, f"seconds; {_intro(record)}")


def _charts(record: Record, columns: int) -> list[Chart]:
    step = record.planned / columns
    begun = min(columns, int(record.now / step) + 1)
    # A bar shows the second that ends with it, or its whole time if that is longer.
    ends = [min((number + 1) * step, record.now) for number in range(begun)]
    starts = [record.per_second(end, max(1.0, step)) for end in ends] + [0.0] * (columns - begun)
    waiting = [tasks for _, tasks in record.waiting] or [0]
    if record.ended:
        rate = f"at most {record.fullest_second()} in one second, {record.allowed} allowed"
        line = f"at most {max(waiting)}"
    else:
        rate = f"{record.per_second(record.now):.0f} in the last second"
        line = f"{waiting[-1]} now"
    latencies = [(sent, round((started - sent) * 1000)) for sent, started in record.plain]
    slow, latency = _highest(latencies, step, begun, columns), _latency_text(record.figures())
    waits = _highest(record.waiting, step, begun, columns)
    return [
        Chart("Starts per second with the limit", starts, charts.BLUE, rate, record.allowed),
        Chart("Tasks in the line", waits, charts.ORANGE, line),
        Chart("Latency without a limit, in ms", slow, charts.GREEN, latency, _MIN_TOP_MS),
    ]


def _highest(
    points: Iterable[tuple[float, float]], step: float, begun: int, columns: int
) -> list[float]:
    """Return the highest value of each bar, from pairs of time and value.

    A bar without a point repeats the one before; those that have not begun are 0.
    """
    found: dict[int, float] = {}
    for at, value in points:
        found[int(at / step)] = max(value, found.get(int(at / step), 0.0))
    values = [0.0] * columns
    for number in range(begun):
        values[number] = found.get(number, values[number - 1])
    return values


def _ends(left: str, right: str, width: int) -> str:
    """Return a line with two texts at its ends. The right one is truncated."""
    right = right[: max(0, width - len(left) - 2)]
    return click.style(left, bold=True) + right.rjust(width - len(left))
