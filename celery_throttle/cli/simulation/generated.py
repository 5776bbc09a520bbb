"""Generated traces, such as ``"steady:10/s,60s"``. Each begins at the time 0."""

from __future__ import annotations

import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import NamedTuple

from celery_throttle.cli.shared.exit_codes import CommandError
from celery_throttle.cli.simulation.traces import Arrival, Trace, parse_cost, parse_time
from celery_throttle.errors import shown
from celery_throttle.limits.duration import parse_duration
from celery_throttle.limits.rate import Rate

#: Microseconds from the first burst at an edge to the edge, where the second comes.
EDGE_LEAD_US = 1_000

_WHOLE = re.compile(r"\d{1,9}", re.ASCII)


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
    text, _, window_text = bursts.partition("@")
    count = _whole(text, "count")
    window, length = parse_duration(window_text), parse_duration(duration)
    if window <= EDGE_LEAD_US or window >= length:
        raise CommandError(
            f"{shown(bursts)} has no edge; allowed: windows of more than {EDGE_LEAD_US} us, "
            "in less time than it lasts"
        )
    times = ((edge - EDGE_LEAD_US, edge) for edge in range(window, length, window))
    return chain.from_iterable(repeat(Arrival(at), count) for at in chain.from_iterable(times))


def _fanout(count: str) -> Iterator[Arrival]:
    return repeat(Arrival(0), _whole(count, "count"))


def _times(*times: str) -> Iterator[Arrival]:
    for time, form in map(parse_time, times):
        yield Arrival(time, form=form)


def _whole(text: str, name: str, least: int = 1) -> int:
    if not _WHOLE.fullmatch(text) or int(text) < least:
        raise CommandError(
            f"{name} {shown(text)} is not allowed: whole numbers from {least} to 999999999"
        )
    return int(text)


class Generator(NamedTuple):
    """One kind of trace."""

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


def find_generator(text: str) -> Generator | None:
    """Return the generator that a text names; None if there is none."""
    name, colon, _ = text.partition(":")
    return GENERATORS.get(name) if colon else None


def generate(generator: Generator, text: str) -> Trace:
    """Generate a trace from ``"<name>:<field>,...,<option>=<value>"``.

    Raises:
        CommandError: the text has another form, or gives too many arrivals.
        LimitError: a rate, a duration or a cost is wrong.
    """
    parts = [part.strip() for part in text.partition(":")[2].split(",")]
    fields = [part for part in parts if "=" not in part]
    options = dict(re.split(r"\s*=\s*", part, maxsplit=1) for part in parts if "=" in part)
    cost = parse_cost(options.pop("cost", "1"))
    try:
        call = inspect.signature(generator.arrivals).bind(*fields, **options)
    except TypeError:
        raise CommandError(
            f"{shown(text)} is not of the form {generator.form!r}; cost=... may follow"
        ) from None
    arrivals = generator.arrivals(*call.args, **call.kwargs)
    return Trace.of(text, (one._replace(cost=cost) for one in arrivals))
