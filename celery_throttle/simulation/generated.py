"""Traces that are generated: ``"steady:10/s,60s"`` and the like. Each begins at the time 0."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from celery_throttle.errors import LimitError, shown
from celery_throttle.limits.cost import Cost
from celery_throttle.limits.rate import Rate
from celery_throttle.simulation import SimulateError
from celery_throttle.simulation.times import Form, parse_duration, parse_time
from celery_throttle.simulation.traces import Arrival, Trace, check_count, parse_cost

#: How long before an edge the first of its two bursts comes, in microseconds.
BEFORE = 1_000

_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spec:
    """The text that says what to generate, taken apart.

    Attributes:
        text: as written.
        fields: what stands between the commas.
        options: those of the form ``name=value``.
    """

    text: str
    fields: tuple[str, ...]
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Take ``"<name>:<field>,...,<option>=<value>"`` apart."""
        parts = [part.strip() for part in text.partition(":")[2].split(",")]
        fields = [part for part in parts if "=" not in part]
        options = {
            name.strip(): value.strip()
            for name, _, value in (part.partition("=") for part in parts if "=" in part)
        }
        return cls(text, tuple(fields), options)

    def rate(self, text: str) -> Rate:
        """A rate of arrivals."""
        try:
            return Rate.parse(text)
        except LimitError as error:
            raise SimulateError(f"{shown(self.text)}: {error}") from None

    def whole(self, text: str, what: str, least: int = 1) -> int:
        """A whole number."""
        if not _WHOLE.fullmatch(text) or int(text) < least:
            raise SimulateError(
                f"{what} {shown(text)} in {shown(self.text)} is not allowed: "
                f"whole numbers from {least} to 999999999"
            )
        return int(text)

    @property
    def cost(self) -> Cost:
        """What each arrival costs."""
        return parse_cost(self.options.get("cost", ""))


def _times(spec: Spec) -> Iterator[int]:
    for field in spec.fields:
        yield parse_time(field)[0]


def _fanout(spec: Spec) -> Iterator[int]:
    count = spec.whole(spec.fields[0], "count")
    check_count(count, spec.text)
    return iter([0] * count)


def _steady(spec: Spec) -> Iterator[int]:
    rate, duration = spec.rate(spec.fields[0]), parse_duration(spec.fields[1])
    count = -(-duration * rate.count // rate.period_us)
    check_count(count, spec.text)
    return (number * rate.period_us // rate.count for number in range(count))


def _random(spec: Spec) -> Iterator[int]:
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


def _edges(spec: Spec) -> Iterator[int]:
    text, _, window_text = spec.fields[0].partition("@")
    count, window = spec.whole(text, "count"), parse_duration(window_text)
    duration = parse_duration(spec.fields[1])
    edges = range(window, duration, window)
    if window <= BEFORE or not edges:
        raise SimulateError(
            f"{shown(spec.text)} has no edge; allowed: windows of more than {BEFORE} us, "
            "in less time than it lasts"
        )
    check_count(2 * count * len(edges), spec.text)
    for edge in edges:
        for at in (edge - BEFORE, edge):
            yield from [at] * count


@dataclass(frozen=True, slots=True)
class Generator:
    """One kind of trace.

    Attributes:
        form: how it is written.
        fields: how many there are; None for any number.
        options: the names of those it takes.
        times: when its requests arrive.
        about: what it is, for the help.
    """

    form: str
    fields: int | None
    options: tuple[str, ...]
    times: Callable[[Spec], Iterator[int]]
    about: str


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


def find(text: str) -> Generator | None:
    """The generator that a text names."""
    name, colon, _ = text.partition(":")
    return GENERATORS.get(name) if colon else None


def generate(generator: Generator, text: str) -> Trace:
    """Generate a trace.

    Raises:
        SimulateError: the text is not of the generator's form, or means too many arrivals.
    """
    spec = Spec.parse(text)
    wrong = sorted(set(spec.options) - set(generator.options))
    number = len(spec.fields)
    if wrong or not all(spec.fields) or number != (generator.fields or number):
        at_fault = f"{shown(wrong[0] + '=')} in {shown(text)}" if wrong else shown(text)
        options = ", ".join(f"{name}=..." for name in generator.options)
        raise SimulateError(f"{at_fault} is not of the form {generator.form!r}; options: {options}")
    cost = spec.cost
    arrivals = [Arrival(time, cost) for time in generator.times(spec)]
    listed = spec.fields if generator.times is _times else ()
    return Trace.of(text, arrivals, [parse_time(field)[1] for field in listed] or [Form.SECONDS])
