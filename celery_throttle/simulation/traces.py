"""Traces: when requests arrive, and what they cost; read from CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TextIO

from celery_throttle.errors import CostError, shown
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.rate import UNITS
from celery_throttle.simulation import SimulateError
from celery_throttle.simulation.times import NUMBER, Form, moment, parse_time

#: The most arrivals of a trace.
MOST = 1_000_000

#: The name of standard input.
STDIN = "-"

_COLUMNS = 2


class Arrival(NamedTuple):
    """One request: when it comes, in microseconds since the epoch or any other zero; its cost."""

    time: int
    cost: Cost = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times.

    Attributes:
        name: what the user called it.
        arrivals: at least one.
        form: how their times were written.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    form: Form = Form.SECONDS

    @classmethod
    def of(
        cls, name: str, arrivals: Iterable[Arrival], forms: Iterable[Form] = (Form.SECONDS,)
    ) -> Trace:
        """A trace of arrivals in any order, whose times were written in these forms.

        Raises:
            SimulateError: there are no arrivals, or too many, or several forms.
        """
        ordered = sorted(arrivals, key=lambda arrival: arrival.time)
        if not ordered:
            raise SimulateError(f"{shown(name)} holds no arrival; allowed: one or more")
        check_count(len(ordered), name)
        found = sorted({form.value for form in forms})
        if len(found) > 1:
            raise SimulateError(f"{shown(name)} mixes {' and '.join(found)}; allowed: one of them")
        return cls(name, tuple(ordered), Form(found[0]))

    @property
    def span(self) -> int:
        """Microseconds from the first arrival to the last."""
        return self.arrivals[-1].time - self.arrivals[0].time

    @property
    def origin(self) -> int:
        """Where a time axis begins: at 0 if the times count from about there."""
        first = self.arrivals[0].time
        return 0 if first <= max(self.span, UNITS["m"]) else first

    def moment(self, us: int) -> str:
        """A time as this trace writes them."""
        return moment(us, self.form)


def check_count(count: int, name: str) -> None:
    """Raise SimulateError if a trace would have too many arrivals."""
    if count > MOST:
        raise SimulateError(f"{shown(name)} has {count:,} arrivals; allowed: at most {MOST:,}")


def parse_cost(text: str) -> Cost:
    """Units: a number above 0, whole or not; 1 where there is no text.

    Raises:
        SimulateError: it is none.
    """
    if not text:
        return 1
    number = Decimal(text) if NUMBER.fullmatch(text) else None
    try:
        to_millionths(text if number is None else number)  # type: ignore[arg-type]  # it says so
    except CostError as error:
        raise SimulateError(str(error)) from None
    assert number is not None  # noqa: S101  # text is no cost
    return int(number) if number == number.to_integral_value() else number


def read(name: str) -> Trace:
    """Read a CSV file, or standard input if its name is ``-``.

    Each row holds a time and, if it is not 1, a cost; in the other order if a first row of names
    ends in ``time``. Rows may come in any order. Blank lines are skipped, and those that begin with
    ``#``.

    Raises:
        SimulateError: the file cannot be read, or a row is wrong; the message names its line.
    """
    stdin: TextIO = sys.stdin
    try:
        with nullcontext(stdin) if name == STDIN else Path(name).open(encoding="utf-8-sig") as file:
            rows = list(_rows(file, name))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SimulateError(f"{shown(name)} cannot be read: {error}") from None
    forms = [form for _, form in rows] or [Form.SECONDS]
    return Trace.of(name, (arrival for arrival, _ in rows), forms)


def _rows(file: TextIO, name: str) -> Iterator[tuple[Arrival, Form]]:
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
        except SimulateError as error:
            raise SimulateError(
                f"line {reader.line_num} of {shown(name)}: {error.message}; "
                "a row is a time and, if you like, a cost"
            ) from None


def _arrival(cells: list[str]) -> tuple[Arrival, Form]:
    if len(cells) > _COLUMNS:
        raise SimulateError(f"{shown(','.join(cells))} has {len(cells)} columns")
    time, form = parse_time(cells[0])
    return Arrival(time, parse_cost(cells[1] if cells[1:] else "")), form
