"""Traces: when requests arrive, and their costs. Generated from a short text, or read from CSV."""

from __future__ import annotations

import csv
import inspect
import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from celery_throttle.cli.shared.exit_codes import ArgumentError
from celery_throttle.errors import CostError, shown
from celery_throttle.limits.cost import Cost, to_millionths
from celery_throttle.limits.duration import MAX_EXACT, MICROSECONDS, UNITS, parse_duration
from celery_throttle.limits.rate import Rate

MAX_ARRIVALS = 1_000_000
#: Microseconds from the first burst at an edge to the edge, where the second comes.
EDGE_LEAD_US = 1_000
STDIN = "-"

_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_DATE = re.compile(
    r"(?:(\d{4}-\d\d-\d\d)[T ])?(\d?\d:\d\d)(:\d\d)?(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Arrival(NamedTuple):
    """One request."""

    time: int  #: microseconds since the epoch or any other zero
    cost: Cost = 1
    text: str = ""  #: the time as the user wrote it, if so

    @property
    def label(self) -> str:
        """The time as text."""
        return self.text or format_seconds(self.time)


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals in the order of their times."""

    name: str  #: the text of the user
    arrivals: tuple[Arrival, ...]  #: at least one

    @classmethod
    def of(cls, name: str, arrivals: Iterable[Arrival]) -> Trace:
        """Return the trace of arrivals, in any order.

        Raises:
            ArgumentError: there are no arrivals, or too many.
        """
        ordered = sorted(islice(arrivals, MAX_ARRIVALS + 1), key=lambda arrival: arrival.time)
        if not 0 < len(ordered) <= MAX_ARRIVALS:
            found = "too many arrivals" if ordered else "no arrival"
            raise ArgumentError(f"{shown(name)} has {found}; allowed: 1 to {MAX_ARRIVALS:,}")
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


def format_seconds(us: int) -> str:
    """Format microseconds as seconds, exactly: ``"1.5"``."""
    return f"{Decimal(us) / MICROSECONDS:f}"


def parse_time(text: str) -> int:
    """Parse ``"61.5"``, ``"12:01:05"`` or ``"2026-07-01T09:30:00Z"``; return microseconds.

    A time of day counts from midnight. A date and time (ISO 8601) counts from 1970, and is in UTC
    if it names no zone.

    Raises:
        ArgumentError: the text has another form, or is not from 1970 to 2112.
    """
    if _NUMBER.fullmatch(text):
        us = int((Decimal(text) * MICROSECONDS).to_integral_value())
    elif match := _DATE.fullmatch(text):
        date, minutes, seconds, fraction, zone = match.groups()
        local = f"{date or '1970-01-01'}T{minutes:0>5}{seconds or ':00'}"
        try:
            at = datetime.fromisoformat(local + (zone or "Z").replace("Z", "+00:00"))
        except ValueError as error:
            raise ArgumentError(f"{shown(text)} is no date and time: {error}") from None
        us = (at - _EPOCH) // timedelta(microseconds=1) + int(Decimal(fraction or 0) * MICROSECONDS)
    else:
        raise ArgumentError(
            f"{shown(text)} is no time; allowed: seconds, such as '61.5', a time of a day, such as "
            "'12:01:05', or a date and time, such as '2026-07-01T09:30:00Z'"
        )
    if not 0 <= us <= MAX_EXACT:
        raise ArgumentError(
            f"time {shown(text)} is out of range; allowed: 0 to {MAX_EXACT // MICROSECONDS} "
            "seconds, which is from 1970 to 2112"
        )
    return us


def parse_cost(text: str) -> Cost:
    """Parse a cost: a number above 0, whole or not; raise CostError if it is none."""
    cost: Any = Decimal(text) if _NUMBER.fullmatch(text) else text
    to_millionths(cost)  # rejects text
    return int(cost) if cost % 1 == 0 else Decimal(cost)


def _steady(rate: str, duration: str) -> Iterator[Arrival]:
    arrivals, length = Rate.parse(rate), parse_duration(duration)
    number = -(-length * arrivals.count // arrivals.period_us)
    return (Arrival(one * arrivals.period_us // arrivals.count) for one in range(number))


def _random(rate: str, duration: str, seed: str = "1") -> Iterator[Arrival]:
    """Poisson arrivals: the gaps between them are exponential."""
    arrivals, length = Rate.parse(rate), parse_duration(duration)
    numbers = random.Random(_whole(seed, "seed", 0))
    interval, at = arrivals.period_us / arrivals.count, 0.0
    while (at := at - interval * math.log(1.0 - numbers.random())) < length:
        yield Arrival(int(at))


def _edges(bursts: str, duration: str) -> Iterator[Arrival]:
    count, _, window_text = bursts.partition("@")
    window, length = parse_duration(window_text), parse_duration(duration)
    for edge in range(window, length, window):
        for at in (max(0, edge - EDGE_LEAD_US), edge):
            yield from repeat(Arrival(at), _whole(count, "count"))


def _fanout(count: str) -> Iterator[Arrival]:
    return repeat(Arrival(0), _whole(count, "count"))


def _times(*times: str) -> Iterator[Arrival]:
    return (Arrival(parse_time(text), text=text) for text in times)


def _whole(text: str, name: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) < least:
        raise ArgumentError(
            f"{name} {shown(text)} is not allowed: whole numbers from {least} to 999999999"
        )
    return int(text)


class Generator(NamedTuple):
    """One kind of generated trace. It begins at the time 0."""

    form: str  #: an example of its text
    description: str  #: for the help
    arrivals: Callable[..., Iterator[Arrival]]  #: makes them from what is between the commas


GENERATORS: Mapping[str, Generator] = {
    "steady": Generator("steady:10/s,60s", "10 a second for 60 s, evenly spaced", _steady),
    "random": Generator(
        "random:10/s,60s,seed=1", "as many on average, at random (Poisson)", _random
    ),
    "edges": Generator(
        "edges:100@60s,300s",
        "100 one ms before, and 100 at, each edge of 60 s windows, for 300 s",
        _edges,
    ),
    "fanout": Generator("fanout:1000", "1,000 at once", _fanout),
    "times": Generator("times:5,15,61", "at these times", _times),
}


def read_trace(text: str) -> Trace:
    """Generate the trace ``"<name>:<field>,...,<option>=<value>"``, or read a file.

    Raises:
        ArgumentError: the text or file has another form, or gives too many arrivals.
        LimitError: a rate, a duration or a cost is wrong.
    """
    name, colon, values = text.partition(":")
    if not colon or name not in GENERATORS:
        return _read_file(text)
    generator, parts = GENERATORS[name], [part.strip() for part in values.split(",")]
    fields = [part for part in parts if "=" not in part]
    options = dict(re.split(r"\s*=\s*", part, maxsplit=1) for part in parts if "=" in part)
    cost = parse_cost(options.pop("cost", "1"))
    try:
        call = inspect.signature(generator.arrivals).bind(*fields, **options)
    except TypeError:
        raise ArgumentError(
            f"{shown(text)} is not of the form {generator.form!r}; cost=... may follow"
        ) from None
    arrivals = generator.arrivals(*call.args, **call.kwargs)
    return Trace.of(text, (one._replace(cost=cost) for one in arrivals))


def _read_file(name: str) -> Trace:
    """Read a CSV file, or standard input if its name is ``-``.

    Each row holds a time and, optionally, a cost; in reverse order if a first row of names ends in
    ``time``. Rows may come in any order. Blank lines and those that begin with ``#`` are skipped.
    The message of an error names the line.
    """
    if name != STDIN and not Path(name).exists():
        forms = ", ".join(repr(one.form) for one in GENERATORS.values())
        raise ArgumentError(f"{name!r} is neither a file nor a trace; allowed: {forms}")
    stdin: TextIO = sys.stdin
    try:
        with nullcontext(stdin) if name == STDIN else Path(name).open(encoding="utf-8-sig") as file:
            return Trace.of(name, _rows(file, name))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"{shown(name)} cannot be read: {error}") from None


def _rows(file: TextIO, name: str) -> Iterator[Arrival]:
    may_be_head, order = True, 1
    reader = csv.reader(file, skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        is_head, may_be_head = may_be_head and all(cell[:1].isalpha() for cell in cells), False
        if is_head:
            order = -1 if cells[1:] and cells[-1].lower() == "time" else 1
            continue
        try:
            yield _arrival(cells[::order])
        except (ArgumentError, CostError) as error:
            raise ArgumentError(
                f"line {reader.line_num} of {shown(name)}: {error}; "
                "a row is a time and, if you like, a cost"
            ) from None


def _arrival(cells: list[str]) -> Arrival:
    time, cost, *more = [*cells, ""]
    if more[1:]:
        raise ArgumentError(f"{shown(','.join(cells))} has {len(cells)} columns")
    return Arrival(parse_time(time), parse_cost(cost) if cost else 1, time)
