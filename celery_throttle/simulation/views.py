"""What a person or a program is shown: a table with a limit a row, each arrival, or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from celery_throttle.demo.record import figure
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.rate import UNITS
from celery_throttle.simulation.figures import Figures, figures
from celery_throttle.simulation.memory import Memory
from celery_throttle.simulation.run import Mode, Outcome, Run
from celery_throttle.simulation.times import seconds
from celery_throttle.simulation.traces import Trace

_WORDS = {Mode.DROP: "a refused one is gone", Mode.WAIT: "a refused one waits in line"}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A trace and what each limit made of it.

    Attributes:
        trace: the trace.
        mode: what became of those that were refused.
        runs: one for each limit.
        memory: what one key of each takes; None if nobody asked.
    """

    trace: Trace
    mode: Mode
    runs: Sequence[Run]
    memory: Memory | None = None

    @property
    def figures(self) -> list[Figures]:
        """Of each limit."""
        measured = self.memory.bytes if self.memory else (None,) * len(self.runs)
        return [figures(run, size) for run, size in zip(self.runs, measured, strict=True)]

    def as_dict(self, *, each: bool = False) -> dict[str, Any]:
        """For JSON; with ``each``, also what became of each arrival."""
        limits = [one.as_dict() for one in self.figures]
        if each:
            for about, run in zip(limits, self.runs, strict=True):
                about["starts_us"] = [one.start for one in run.outcomes]
        about = {
            "trace": self.trace.name,
            "mode": self.mode.value,
            "arrivals": len(self.trace.arrivals),
            "span_s": float(seconds(self.trace.span)),
            "server": self.memory.server if self.memory else None,
            "limits": limits,
        }
        return {**about, "times_us": [one.time for one in self.trace.arrivals]} if each else about


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is aligned to the left, the others to the right."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def summary(simulation: Simulation) -> Table:
    """The figures, a limit a row."""
    trace, memory = simulation.trace, simulation.memory
    counted = f"{len(trace.arrivals):,} arrival{'s' if len(trace.arrivals) > 1 else ''}"
    note = ""
    if memory and memory.server:
        note = f"waits in seconds; bytes: memory of one key at its fullest in {memory.server}"
    elif memory:
        note = f"waits in seconds; bytes: not measured: {memory.missing}"
    return Table(
        f"{trace.name}: {counted} in {seconds(trace.span)} s; {_WORDS[simulation.mode]}",
        (
            *("limit", "admitted", "refused", "fullest window"),
            *("wait p50", "p95", "p99", "max", "bytes a key"),
        ),
        [_row(one, run) for one, run in zip(simulation.figures, simulation.runs, strict=True)],
        note or "waits in seconds",
    )


def _row(about: Figures, run: Run) -> list[str]:
    waits = (about.wait_p50_s, about.wait_p95_s, about.wait_p99_s, about.wait_max_s)
    return [
        about.limit,
        f"{about.admitted:,}",
        f"{about.refused:,}",
        fullest_words(about, run),
        *(figure(wait, "{:.3f}") for wait in waits),
        figure(about.memory_bytes, "{:,}"),
    ]


def fullest_words(about: Figures, run: Run) -> str:
    """``"20 in 60 s"``; of slots ``"10 at once"``."""
    amount = f"{about.fullest_window:,}"
    if run.limit.algorithm == CONCURRENCY or about.window_s is None:
        return f"{amount} at once"
    return f"{amount} in {period(round(about.window_s * 1_000_000))}"


def period(us: int) -> str:
    """A period in words, by the largest unit that fits: ``"60 s"``, ``"1 h"``."""
    for unit in ("month", "w", "d", "h"):
        if us % UNITS[unit] == 0:
            return f"{us // UNITS[unit]} {unit}"
    return f"{seconds(us)} s"


def arrivals(simulation: Simulation) -> Table:
    """What became of each arrival, one a row."""
    trace = simulation.trace
    columns = [[_outcome(one) for one in run.outcomes] for run in simulation.runs]
    times = [trace.moment(arrival.time) for arrival in trace.arrivals]
    if any(arrival.cost != 1 for arrival in trace.arrivals):
        times = [
            f"{time} cost {arrival.cost}"
            for time, arrival in zip(times, trace.arrivals, strict=True)
        ]
    head = ("arrival", *(str(run.limit) for run in simulation.runs))
    return Table("", head, list(zip(times, *columns, strict=True)))


def _outcome(outcome: Outcome) -> str:
    if outcome.start is None:
        if outcome.retry_after is None:
            return "refused"
        return f"refused for {seconds(outcome.retry_after)} s"
    return f"admitted after {seconds(outcome.wait)} s" if outcome.wait else "admitted"


def show(table: Table) -> None:
    """Print a table: drawn on a terminal, if rich is there; plain text elsewhere."""
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and find_spec("rich"):
        _draw(table)
    else:
        for line in lines(table):
            print(line)


def _draw(table: Table) -> None:
    from rich import box  # noqa: PLC0415  # an extra
    from rich.console import Console  # noqa: PLC0415  # an extra
    from rich.table import Table as Drawn  # noqa: PLC0415  # an extra
    from rich.text import Text  # noqa: PLC0415  # an extra

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    drawn.add_column(Text(table.head[0]), overflow="fold")
    for name in table.head[1:]:
        # Of the figures' names one word stands above the other; limits are left as they are.
        name_in_two = Text(name.replace(" ", "\n", 1) if table.title else name)
        drawn.add_column(name_in_two, justify="right", no_wrap=bool(table.title))
    for row in table.rows:
        drawn.add_row(*map(Text, row))
    console = Console()
    for part in (Text(table.title, "bold"), drawn, Text(table.note, "dim")):
        if part:
            console.print(part)


def lines(table: Table) -> list[str]:
    """A table as plain text."""
    widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
    found = [table.title, ""] if table.title else []
    for row in (table.head, *table.rows):
        first, *rest = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        found.append("  ".join((first, *rest)).rstrip())
    return [*found, "", table.note] if table.note else found
