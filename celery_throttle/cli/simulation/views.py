"""Shows a simulation: a table with one limit per row, or with each arrival, or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from celery_throttle.cli.demo.record import format_figure
from celery_throttle.cli.simulation.figures import Figures, figures
from celery_throttle.cli.simulation.memory import MemoryUsage
from celery_throttle.cli.simulation.run import ArrivalOutcome, Mode, SimulatedRun
from celery_throttle.cli.simulation.times import format_seconds
from celery_throttle.cli.simulation.traces import Trace
from celery_throttle.limits.duration import MICROSECONDS, UNITS
from celery_throttle.limits.grammar import CONCURRENCY

_WORDS = {Mode.DROP: "a refused one is gone", Mode.WAIT: "a refused one waits in line"}


@dataclass(frozen=True, slots=True)
class Simulation:
    """The runs of a trace."""

    trace: Trace
    mode: Mode  #: what became of refused arrivals
    runs: Sequence[SimulatedRun]  #: one for each limit
    memory: MemoryUsage | None = None  #: of one key of each limit; None if it was not requested

    @property
    def figures(self) -> list[Figures]:
        """The figures of each limit."""
        measured = self.memory.bytes if self.memory else (None,) * len(self.runs)
        return [figures(run, size) for run, size in zip(self.runs, measured, strict=True)]

    def as_dict(self, *, each: bool = False) -> dict[str, Any]:
        """Return it for JSON; with ``each``, including the outcome of each arrival."""
        limits = [asdict(one) for one in self.figures]
        if each:
            for limit, run in zip(limits, self.runs, strict=True):
                limit["starts_us"] = [one.start for one in run.outcomes]
        result: dict[str, Any] = {
            "trace": self.trace.name,
            "mode": self.mode.value,
            "arrivals": len(self.trace.arrivals),
            "span_s": float(format_seconds(self.trace.span)),
            "server": self.memory.server if self.memory else None,
            "limits": limits,
        }
        if each:
            result["times_us"] = [one.time for one in self.trace.arrivals]
        return result


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. The first column is aligned to the left, the others to the right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def summary_table(simulation: Simulation) -> Table:
    """Return the table of the figures, one limit per row."""
    trace, memory = simulation.trace, simulation.memory
    counted = f"{len(trace.arrivals):,} arrival{'s' if len(trace.arrivals) > 1 else ''}"
    note = ""
    if memory and memory.server:
        note = f"waits in seconds; bytes: memory of one key at its fullest in {memory.server}"
    elif memory:
        note = f"waits in seconds; bytes: not measured: {memory.missing}"
    return Table(
        f"{trace.name}: {counted} in {format_seconds(trace.span)} s; {_WORDS[simulation.mode]}",
        (
            *("limit", "admitted", "refused", "fullest window"),
            *("wait p50", "p95", "p99", "max", "bytes a key"),
        ),
        [_row(one, run) for one, run in zip(simulation.figures, simulation.runs, strict=True)],
        note or "waits in seconds",
    )


def _row(found: Figures, run: SimulatedRun) -> list[str]:
    waits = (found.wait_p50_s, found.wait_p95_s, found.wait_p99_s, found.wait_max_s)
    return [
        found.limit,
        f"{found.admitted:,}",
        f"{found.refused:,}",
        fullest_words(found, run),
        *(format_figure(wait, "{:.3f}") for wait in waits),
        format_figure(found.memory_bytes, "{:,}"),
    ]


def fullest_words(found: Figures, run: SimulatedRun) -> str:
    """Return ``"20 in 60 s"``; for slots ``"10 at once"``."""
    amount = f"{found.fullest_window:,}"
    if run.limit.algorithm == CONCURRENCY or found.window_s is None:
        return f"{amount} at once"
    return f"{amount} in {period(round(found.window_s * MICROSECONDS))}"


def period(us: int) -> str:
    """Return a period in words, in the largest unit that divides it: ``"60 s"``, ``"1 h"``."""
    for unit in ("month", "w", "d", "h"):
        if us % UNITS[unit] == 0:
            return f"{us // UNITS[unit]} {unit}"
    return f"{format_seconds(us)} s"


def arrivals_table(simulation: Simulation) -> Table:
    """Return the table of all outcomes, one arrival per row."""
    trace = simulation.trace
    columns = [[_outcome(one) for one in run.outcomes] for run in simulation.runs]
    times = [trace.format_time(arrival.time) for arrival in trace.arrivals]
    if any(arrival.cost != 1 for arrival in trace.arrivals):
        times = [
            f"{time} cost {arrival.cost}"
            for time, arrival in zip(times, trace.arrivals, strict=True)
        ]
    head = ("arrival", *(str(run.limit) for run in simulation.runs))
    return Table("", head, list(zip(times, *columns, strict=True)))


def _outcome(outcome: ArrivalOutcome) -> str:
    if outcome.start is None:
        if outcome.retry_after is None:
            return "refused"
        return f"refused for {format_seconds(outcome.retry_after)} s"
    return f"admitted after {format_seconds(outcome.wait)} s" if outcome.wait else "admitted"


def print_table(table: Table) -> None:
    """Print a table: by rich on a terminal, if it is installed; otherwise as plain text."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and find_spec("rich"):
        _draw(table)
    else:
        for line in format_table(table):
            print(line)


def _draw(table: Table) -> None:
    from rich import box  # noqa: PLC0415  # an extra
    from rich.console import Console  # noqa: PLC0415  # an extra
    from rich.table import Table as Drawn  # noqa: PLC0415  # an extra
    from rich.text import Text  # noqa: PLC0415  # an extra

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    drawn.add_column(Text(table.head[0]), overflow="fold")
    for name in table.head[1:]:
        # Names of figures are broken into two lines, limits are not.
        name_in_two = Text(name.replace(" ", "\n", 1) if table.title else name)
        drawn.add_column(name_in_two, justify="right", no_wrap=bool(table.title))
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console = Console()
    for part in (Text(table.title, "bold"), drawn, Text(table.note, "dim")):
        if part:
            console.print(part)


def format_table(table: Table) -> list[str]:
    """Return the lines of a table as plain text."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
    lines = [table.title, ""] if table.title else []
    for row in (table.head, *table.rows):
        first, *rest = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *rest)).rstrip())
    return [*lines, "", table.note] if table.note else lines
