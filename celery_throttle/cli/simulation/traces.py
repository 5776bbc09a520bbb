"""Traces: when requests arrive, and their costs. Reads them from CSV."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.errors import CostError, shown
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.duration import MAX_EXACT, MICROSECONDS, UNITS

#: The most arrivals of a trace.
MAX_ARRIVALS = 1_000_000

#: The name of standard input.
STDIN = "-"

#: The columns of a file: time and cost.
_COLUMNS = 2

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_DATE = re.compile(
    r"(?:(\d{4}-\d\d-\d\d)[T ])?(\d?\d:\d\d)(:\d\d)?(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class TimeForm(Enum):
    """The form of a time."""

    SECONDS = "seconds"
    CLOCK = "times of a day"
    DATE = "dates"


class Arrival(NamedTuple):
    """One request."""

    time: int  #: microseconds since the epoch or any other zero
    cost: Cost = 1
    form: TimeForm = TimeForm.SECONDS  #: of the time, as it was written


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times."""

    name: str  #: the text of the user
    arrivals: tuple[Arrival, ...]  #: at least one; all times have the same form

    @classmethod
    def of(cls, name: str, arrivals: Iterable[Arrival]) -> Trace:
        """Return the trace of arrivals, in any order.

        Raises:
            CommandError: there are no arrivals, or too many, or times of several forms.
        """
        ordered = sorted(islice(arrivals, MAX_ARRIVALS + 1), key=lambda arrival: arrival.time)
        if not ordered:
            raise CommandError(f"{shown(name)} holds no arrival; allowed: one or more")
        if len(ordered) > MAX_ARRIVALS:
            raise CommandError(f"{shown(name)} has too many arrivals; allowed: {MAX_ARRIVALS:,}")
        forms = sorted({arrival.form.value for arrival in ordered})
        if len(forms) > 1:
            raise CommandError(f"{shown(name)} mixes {' and '.join(forms)}; allowed: one of them")
        return cls(name, tuple(ordered))

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
        form = self.arrivals[0].form
        if form is TimeForm.SECONDS:
            return format_seconds(us)
        text = (_EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat()
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return f"{text}Z" if form is TimeForm.DATE else text.partition("T")[2]


def format_seconds(us: int) -> str:
    """Format microseconds as seconds, exactly: ``"1.5"``."""
    return f"{Decimal(us) / MICROSECONDS:f}"


def parse_time(text: str) -> tuple[int, TimeForm]:
    """Parse ``"61.5"``, ``"12:01:05"`` or ``"2026-07-01T09:30:00Z"``; return microseconds and form.

    A time of day counts from midnight. A date and time (ISO 8601) counts from 1970, and is in UTC
    if it names no zone.

    Raises:
        CommandError: the text has another form, or is not from 1970 to 2112.
    """
    if _NUMBER.fullmatch(text):
        us, form = int((Decimal(text) * MICROSECONDS).to_integral_value()), TimeForm.SECONDS
    elif match := _DATE.fullmatch(text):
        date, minutes, seconds, fraction, zone = match.groups()
        form = TimeForm.DATE if date else TimeForm.CLOCK
        at = f"{date or '1970-01-01'}T{minutes:0>5}{seconds or ':00'}"
        try:
            since = datetime.fromisoformat(f"{at}{(zone or 'Z').replace('Z', '+00:00')}") - _EPOCH
        except ValueError as error:
            raise CommandError(f"{shown(text)} is no date and time: {error}") from None
        us = since // timedelta(microseconds=1) + int(Decimal(fraction or 0) * MICROSECONDS)
    else:
        raise CommandError(
            f"{shown(text)} is no time; allowed: seconds, such as '61.5', a time of a day, such as "
            "'12:01:05', or a date and time, such as '2026-07-01T09:30:00Z'"
        )
    if not 0 <= us <= MAX_EXACT:
        raise CommandError(
            f"time {shown(text)} is out of range; allowed: 0 to {MAX_EXACT // MICROSECONDS} "
            "seconds, which is from 1970 to 2112"
        )
    return us, form


def parse_cost(text: str) -> Cost:
    """Parse a cost: a number above 0, whole or not; raise CostError if it is none."""
    cost: Any = Decimal(text) if _NUMBER.fullmatch(text) else text
    to_millionths(cost)  # rejects text
    return int(cost) if cost % 1 == 0 else Decimal(cost)


def read(name: str) -> Trace:
    """Read a CSV file, or standard input if its name is ``-``.

    Each row holds a time and, optionally, a cost; in reverse order if a first row of names ends in
    ``time``. Rows may come in any order. Blank lines and those that begin with ``#`` are skipped.

    Raises:
        CommandError: the file cannot be read, or a row is wrong; the message names its line.
    """
    stdin: TextIO = sys.stdin
    try:
        with nullcontext(stdin) if name == STDIN else Path(name).open(encoding="utf-8-sig") as file:
            return Trace.of(name, _rows(file, name))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{shown(name)} cannot be read: {error}") from None


def _rows(file: TextIO, name: str) -> Iterator[Arrival]:
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
        except (CommandError, CostError) as error:
            raise CommandError(
                f"line {reader.line_num} of {shown(name)}: {error}; "
                "a row is a time and, if you like, a cost"
            ) from None


def _arrival(cells: list[str]) -> Arrival:
    if len(cells) > _COLUMNS:
        raise CommandError(f"{shown(','.join(cells))} has {len(cells)} columns")
    time, form = parse_time(cells[0])
    return Arrival(time, parse_cost(cells[1]) if cells[1:] and cells[1] else 1, form)
