"""Traces: when requests arrive, and their costs. Reads them from CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TextIO

from celery_throttle.cli.simulation import SimulationError
from celery_throttle.cli.simulation.times import NUMBER, TimeForm, format_time, parse_time
from celery_throttle.errors import CostError, shown
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.duration import UNITS

#: The most arrivals of a trace.
MAX_ARRIVALS = 1_000_000

#: The name of standard input.
STDIN = "-"

_COLUMNS = 2


class Arrival(NamedTuple):
    """One request: its time, in microseconds since the epoch or any other zero, and its cost."""

    time: int
    cost: Cost = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times."""

    name: str  #: the text of the user
    arrivals: tuple[Arrival, ...]  #: at least one
    form: TimeForm = TimeForm.SECONDS

    @classmethod
    def of(
        cls, name: str, arrivals: Iterable[Arrival], forms: Iterable[TimeForm] = (TimeForm.SECONDS,)
    ) -> Trace:
        """Return the trace of arrivals, in any order, whose times have these forms.

        Raises:
            SimulationError: there are no arrivals, or too many, or several forms.
        """
        ordered = sorted(arrivals, key=lambda arrival: arrival.time)
        if not ordered:
            raise SimulationError(f"{shown(name)} holds no arrival; allowed: one or more")
        check_count(len(ordered), name)
        found = sorted({form.value for form in forms})
        if len(found) > 1:
            raise SimulationError(
                f"{shown(name)} mixes {' and '.join(found)}; allowed: one of them"
            )
        return cls(name, tuple(ordered), TimeForm(found[0]))

    @property
    def span(self) -> int:
        """Microseconds from the first arrival to the last."""
        return self.arrivals[-1].time - self.arrivals[0].time

    @property
    def origin(self) -> int:
        """The begin of a time axis: 0 if the first arrival is near 0, or else that arrival."""
        first = self.arrivals[0].time
        return 0 if first <= max(self.span, UNITS["m"]) else first

    def format_time(self, us: int) -> str:
        """Format a time in the form of this trace."""
        return format_time(us, self.form)


def check_count(count: int, name: str) -> None:
    """Raise SimulationError if a trace would have too many arrivals."""
    if count > MAX_ARRIVALS:
        raise SimulationError(
            f"{shown(name)} has {count:,} arrivals; allowed: at most {MAX_ARRIVALS:,}"
        )


def parse_cost(text: str) -> Cost:
    """Parse a cost: a number above 0, whole or not; 1 if the text is empty.

    Raises:
        SimulationError: it is not a cost.
    """
    if not text:
        return 1
    number = Decimal(text) if NUMBER.fullmatch(text) else None
    try:
        to_millionths(text if number is None else number)  # type: ignore[arg-type]  # it rejects text
    except CostError as error:
        raise SimulationError(str(error)) from None
    assert number is not None  # noqa: S101  # to_millionths() rejects text
    return int(number) if number == number.to_integral_value() else number


def read(name: str) -> Trace:
    """Read a CSV file, or standard input if its name is ``-``.

    Each row holds a time and, optionally, a cost; in reverse order if a first row of names ends in
    ``time``. Rows may come in any order. Blank lines and those that begin with ``#`` are skipped.

    Raises:
        SimulationError: the file cannot be read, or a row is wrong; the message names its line.
    """
    stdin: TextIO = sys.stdin
    try:
        with nullcontext(stdin) if name == STDIN else Path(name).open(encoding="utf-8-sig") as file:
            rows = list(_rows(file, name))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SimulationError(f"{shown(name)} cannot be read: {error}") from None
    forms = [form for _, form in rows] or [TimeForm.SECONDS]
    return Trace.of(name, (arrival for arrival, _ in rows), forms)


def _rows(file: TextIO, name: str) -> Iterator[tuple[Arrival, TimeForm]]:
    may_be_head, swapped = True, False
    reader = csv.reader(file, skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        is_head, may_be_head = may_be_head and all(cell[:1].isalpha() for cell in cells), False
        if is_head:
            swapped = cells[1:] != [] and cells[-1].lower() == "time"
            continue
        try:
            yield _arrival(cells[::-1] if swapped else cells)
        except SimulationError as error:
            raise SimulationError(
                f"line {reader.line_num} of {shown(name)}: {error.message}; "
                "a row is a time and, if you like, a cost"
            ) from None


def _arrival(cells: list[str]) -> tuple[Arrival, TimeForm]:
    if len(cells) > _COLUMNS:
        raise SimulationError(f"{shown(','.join(cells))} has {len(cells)} columns")
    time, form = parse_time(cells[0])
    return Arrival(time, parse_cost(cells[1] if cells[1:] else "")), form
