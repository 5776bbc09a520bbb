"""When lines of waiting tasks will be empty: tasks as a fluid that drains through limits.

At any time every line flows as fast as its limits admit: better ranks first, and within a rank in
proportion to weights, until a limit is saturated (progressive filling, which gives weighted max-min
fairness). The flows stay constant until a line is empty, a pause ends, a window begins or a burst
is used up. So few steps of time are enough, however many tasks wait.

The work grows with the square of the number of lines, so ``merge.py`` takes similar lines together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf

from celery_throttle.observe.forecasts.capacity import EPSILON, MOMENT_SECONDS, Capacity, Reservoir

#: Results are rounded to microseconds, which also hides the time in which stored units pass.
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class FluidLine:
    """Waiting tasks."""

    tasks: float  #: how many
    costs: tuple[tuple[int, float], ...]  #: of each task: index of a capacity, and units
    rank: int = 0  #: the lowest is served first
    weight: float = 1.0  #: its share among lines of its rank and queue; queues have equal shares
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    """When a line is empty."""

    seconds: float  #: from now; infinity for never
    limit: str | None  #: the name of the limit that it waited for last; None if it does not wait


@dataclass(slots=True, eq=False)
class _Stream:
    """A line in the course of time."""

    line: FluidLine
    #: The reservoirs that it needs, and units per task. At the first one, which most lines need,
    #: the line shares with other lines of its queue.
    costs: Sequence[tuple[Reservoir, float]]
    left: float  #: tasks
    flow: float = 0.0  #: tasks per second
    saturated: Reservoir | None = None  #: the reservoir that bounds the flow
    drained: Drained = field(default=Drained(inf, None))
    _last_wait: str | None = None

    def serve(self, seconds: float, now: float) -> None:
        """Start the tasks of some seconds, until the time ``now``."""
        if self.saturated is not None and seconds > 2 * MOMENT_SECONDS:
            self._last_wait = self.saturated.capacity.name
        self.left -= self.flow * seconds
        if self.left <= EPSILON * self.line.tasks:
            self.left = 0.0
            self.drained = Drained(round(now, _DIGITS), self._last_wait)


def drain(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return when each line is empty if no task is added."""
    uses = Counter(number for line in lines for number, _ in line.costs)
    reservoirs = {number: Reservoir(capacities[number]) for number in uses}
    streams = []
    for line in lines:
        by_uses = sorted(line.costs, key=lambda cost: -uses[cost[0]])
        costs = [(reservoirs[number], cost) for number, cost in by_uses]
        streams.append(_Stream(line, costs, line.tasks if costs else 0.0))
    active = sorted((one for one in streams if one.left), key=lambda one: one.line.rank)
    _let_pass(active)
    return [one.drained if one.costs else Drained(0.0, None) for one in streams]


def _let_pass(active: Sequence[_Stream]) -> None:
    """Let time pass until each stream is empty, or nothing changes any more."""
    now = 0.0
    while active:
        outflows = _set_flows(active, now)
        seconds = _next_step(active, outflows, now)
        if seconds == inf:
            return
        for stream in active:
            stream.serve(seconds, now + seconds)
        for reservoir, outflow in outflows.items():
            reservoir.advance(now, seconds, outflow)
        now += seconds
        active = [stream for stream in active if stream.left]


def _next_step(active: Iterable[_Stream], outflows: dict[Reservoir, float], now: float) -> float:
    """Return seconds in which all flows stay constant."""
    ends = [stream.left / stream.flow for stream in active if stream.flow > 0]
    ends += [one.seconds_to_zero(outflow) for one, outflow in outflows.items()]
    return min([inf, *ends, *(one.next_change(now) - now for one in outflows)])


def _set_flows(active: Sequence[_Stream], now: float) -> dict[Reservoir, float]:
    """Set the flow of each stream, by rank. Returns the outflow of each reservoir that they need.

    The streams are sorted by rank.
    """
    room = {one: one.max_outflow(now) for stream in active for one, _ in stream.costs}
    outflows = dict.fromkeys(room, 0.0)
    for _, same_rank in groupby(active, key=lambda stream: stream.line.rank):
        _fill(list(same_rank), room, outflows)
    return outflows


def _fill(
    streams: Sequence[_Stream], room: dict[Reservoir, float], outflows: dict[Reservoir, float]
) -> None:
    """Raise all flows evenly; those that need a saturated reservoir stay at its level.

    ``room``: units per second that each reservoir still admits. It is reduced, and ``outflows`` are
    raised.
    """
    load: defaultdict[Reservoir, float] = defaultdict(float)
    rising: defaultdict[Reservoir, list[tuple[_Stream, float]]] = defaultdict(list)
    for stream, weight in zip(streams, _weights(streams), strict=True):
        stream.flow, stream.saturated = 0.0, None
        for reservoir, cost in stream.costs:
            load[reservoir] += cost * weight
            rising[reservoir].append((stream, weight))
    # The level of a reservoir rises when others stop streams that need it: it is pushed again then.
    levels = [(room[one] / load[one], number, one) for number, one in enumerate(load)]
    heapify(levels)
    while levels:
        level, number, reservoir = heappop(levels)
        new_level = max(0.0, room[reservoir]) / load[reservoir]
        if new_level > level * (1 + EPSILON):
            heappush(levels, (new_level, number, reservoir))
            continue
        for stream, weight in rising[reservoir]:
            if stream.saturated is not None:
                continue
            stream.flow, stream.saturated = weight * level, reservoir
            for other, cost in stream.costs:
                room[other] -= cost * stream.flow
                outflows[other] += cost * stream.flow
                load[other] = max(load[other] - cost * weight, EPSILON * cost * weight)


def _weights(streams: Sequence[_Stream]) -> list[float]:
    """Return the weight of each stream: queues share a limit equally, lines within a queue."""
    keys = [(stream.costs[0][0], stream.line.queue) for stream in streams]
    whole: defaultdict[tuple[Reservoir, str], float] = defaultdict(float)
    for stream, key in zip(streams, keys, strict=True):
        whole[key] += stream.line.weight
    return [stream.line.weight / whole[key] for stream, key in zip(streams, keys, strict=True)]
