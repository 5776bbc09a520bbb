"""Generated traces, such as ``"steady:10/s,60s"``. Each begins at the time 0."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from celery_throttle.cli.simulation import SimulationError
from celery_throttle.cli.simulation.times import TimeForm, parse_duration, parse_time
from celery_throttle.cli.simulation.traces import Arrival, Trace, check_count, parse_cost
from celery_throttle.errors import LimitError, shown
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.rate import Rate

#: Microseconds from the first burst at an edge to the edge, where the second comes.
EDGE_LEAD_US = 1_000

_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """The parts of a text that says what to generate."""

    text: str
    fields: tuple[str, ...]  #: what is between the commas
    options: Mapping[str, str]  #: those of the form `name=value`

    @classmethod
    def parse(cls, text: str) -> TraceSpec:
        """Parse ``"<name>:<field>,...,<option>=<value>"``."""
        parts = [part.strip() for part in text.partition(":")[2].split(",")]
        fields = [part for part in parts if "=" not in part]
        options = {
            name.strip(): value.strip()
            for name, _, value in (part.partition("=") for part in parts if "=" in part)
        }
        return cls(text, tuple(fields), options)

    def rate(self, text: str) -> Rate:
        """Parse a rate of arrivals."""
        try:
            return Rate.parse(text)
        except LimitError as error:
            raise SimulationError(f"{shown(self.text)}: {error}") from None

    def whole(self, text: str, name: str, least: int = 1) -> int:
        """Parse the whole number of this name."""
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise SimulationError(
                f"{name} {shown(text)} in {shown(self.text)} is not allowed: "
                f"whole numbers from {least} to 999999999"
            )
        return int(text)

    @property
    def cost(self) -> Cost:
        """The cost of each arrival."""
        return parse_cost(self.options.get("cost", ""))


def _times(spec: TraceSpec) -> Iterator[int]:
    for field in spec.fields:
        yield parse_time(field)[0]


def _fanout(spec: TraceSpec) -> Iterator[int]:
    count = spec.whole(spec.fields[0], "count")
    check_count(count, spec.text)
    return iter([0] * count)


def _steady(spec: TraceSpec) -> Iterator[int]:
    rate, duration = spec.rate(spec.fields[0]), parse_duration(spec.fields[1])
    count = -(-duration * rate.count // rate.period_us)
    check_count(count, spec.text)
    return (number * rate.period_us // rate.count for number in range(count))


def _random(spec: TraceSpec) -> Iterator[int]:
    """Poisson arrivals: the gaps between them are exponential."""
    rate, duration = spec.rate(spec.fields[0]), parse_duration(spec.fields[1])
    check_count(duration * rate.count // rate.period_us, spec.text)
    numbers = random.Random(spec.whole(spec.options.get("seed", "1"), "seed", 0))
    interval, at = rate.period_us / rate.count, 0.0
    while True:
        at -= interval * math.log(1.0 - numbers.random())
        if at >= duration:
            return
        yield int(at)


def _edges(spec: TraceSpec) -> Iterator[int]:
    text, _, window_text = spec.fields[0].partition("@")
    count, window = spec.whole(text, "count"), parse_duration(window_text)
    duration = parse_duration(spec.fields[1])
    edges = range(window, duration, window)
    if window <= EDGE_LEAD_US or not edges:
        raise SimulationError(
            f"{shown(spec.text)} has no edge; allowed: windows of more than {EDGE_LEAD_US} us, "
            "in less time than it lasts"
        )
    check_count(2 * count * len(edges), spec.text)
    for edge in edges:
        for at in (edge - EDGE_LEAD_US, edge):
            yield from [at] * count


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of trace."""

    form: str  #: an example of its text
    fields: int | None  #: their number; None for any number
    options: tuple[str, ...]  #: their names
    times: Callable[[TraceSpec], Iterator[int]]  #: generates the times of arrival
    description: str  #: for the help


GENERATORS: Mapping[str, Generator] = {
    "steady": Generator(
        "steady:10/s,60s", 2, ("cost",), _steady, "10 a second for 60 s, evenly spaced"
    ),
    "random": Generator(
        "random:10/s,60s,seed=1",
        2,
        ("cost", "seed"),
        _random,
        "as many on average, at random (Poisson)",
    ),
    "edges": Generator(
        "edges:100@60s,300s",
        2,
        ("cost",),
        _edges,
        "100 one ms before, and 100 at, each edge of 60 s windows, for 300 s",
    ),
    "fanout": Generator("fanout:1000", 1, ("cost",), _fanout, "1,000 at once"),
    "times": Generator("times:5,15,61", None, ("cost",), _times, "at these times"),
}


def find_generator(text: str) -> Generator | None:
    """Return the generator that a text names; None if there is none."""
    name, colon, _ = text.partition(":")
    return GENERATORS.get(name) if colon else None


def generate(generator: Generator, text: str) -> Trace:
    """Generate a trace.

    Raises:
        SimulationError: the text has another form, or gives too many arrivals.
    """
    spec = TraceSpec.parse(text)
    unknown = sorted(set(spec.options) - set(generator.options))
    number = len(spec.fields)
    if unknown or not all(spec.fields) or number != (generator.fields or number):
        culprit = f"{shown(unknown[0] + '=')} in {shown(text)}" if unknown else shown(text)
        options = ", ".join(f"{name}=..." for name in generator.options)
        raise SimulationError(
            f"{culprit} is not of the form {generator.form!r}; options: {options}"
        )
    cost = spec.cost
    arrivals = [Arrival(time, cost) for time in generator.times(spec)]
    times = spec.fields if generator.times is _times else ()
    forms = [parse_time(field)[1] for field in times] or [TimeForm.SECONDS]
    return Trace.of(text, arrivals, forms)
