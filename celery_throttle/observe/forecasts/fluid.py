"""When lines of waiting tasks will be empty: tasks as a fluid that drains through limits.

At any time every line flows as fast as its limits admit: better ranks first, and within a rank in
proportion to weights, until a limit is saturated (progressive filling, which gives weighted max-min
fairness). The flows stay constant until a line is empty, a pause ends, a window begins or a burst
is used up. So few steps of time are enough, however many tasks wait.

The work grows with the square of the number of lines. Where many lines wait, each limit is
considered alone instead, which takes no steps of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import chain, groupby
from math import inf

#: Lines that can be drained step by step in a fraction of a second.
_MAX_LINES = 200

#: Differences below this share of a number are rounding errors.
_EPSILON = 1e-9

#: The seconds in which stored units pass.
_MOMENT = 1e-9

#: Results are rounded to microseconds, which also hides the time in which stored units pass.
_DIGITS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """What one clause of a limit, or of a key of it, admits from now on."""

    name: str
    rate: float  #: units per second, after all windows; 0.0 if it is paused until it is resumed
    stored: float = 0.0  #: units that can pass at once; negative if units are still owed
    burst: float = 1.0  #: units that it can store
    paused: float = 0.0  #: seconds in which nothing passes
    windows: Sequence[tuple[float, float]] = ()  #: seconds until each begins, and its units

    def seconds_for(self, units: float) -> float:
        """Return seconds until this number of units has passed, at a rate above 0."""
        if not self.windows:
            filled = min(self.stored + self.rate * self.paused, max(self.stored, self.burst))
            return self.paused + max(0.0, units - filled) / self.rate
        left = units - self.stored
        for start, added in ((0.0, 0.0), *self.windows):
            left -= added
            if left <= 0:
                return max(start, self.paused)
        return self.windows[-1][0] + left / self.rate


@dataclass(frozen=True, slots=True)
class FluidLine:
    """Waiting tasks."""

    tasks: float  #: how many
    costs: tuple[tuple[Capacity, float], ...]  #: the capacities that each task needs, and units
    rank: int = 0  #: the lowest is served first
    weight: float = 1.0  #: its share among lines of its rank and queue; queues have equal shares
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Drained:
    """When a line is empty."""

    seconds: float  #: from now; infinity for never
    limit: str | None  #: the name of the limit that it waited for last; None if it does not wait
    #: Seconds, and how many tasks are left then; in between they start evenly.
    path: Sequence[tuple[float, float]] = ()

    def seconds_of(self, position: float, tasks: float) -> float:
        """Return the seconds until a task starts, by its position among ``tasks``, from 1."""
        began, before = 0.0, tasks
        for seconds, left in self.path or ((self.seconds, 0.0),):
            if left <= tasks - position:
                share = (before - (tasks - position)) / (before - left) if before > left else 0.0
                return began + (seconds - began) * share
            began, before = seconds, left
        return self.seconds


@dataclass(slots=True, eq=False)
class _Reservoir:
    """A capacity in the course of time."""

    capacity: Capacity
    stored: float  #: units; negative if units are owed
    begun: int = 0  #: how many windows have begun
    room: float = 0.0  #: units per second that more tasks may use in this step
    outflow: float = 0.0  #: units per second that tasks use in this step

    @property
    def _inflow(self) -> float:
        return self.capacity.rate if self.begun == len(self.capacity.windows) else 0.0

    def begin_step(self, now: float) -> None:
        is_open = self.capacity.paused <= now and self.stored >= 0
        self.room = self._inflow + self.stored / _MOMENT if is_open else 0.0
        self.outflow = 0.0

    def seconds_constant(self, now: float) -> float:
        """Return seconds until a pause ends, a window begins, or nothing is stored or owed."""
        capacity, net = self.capacity, self._net_inflow()
        ends = [-self.stored / net] if self.stored * net < 0 else []
        if capacity.paused > now:
            ends.append(capacity.paused - now)
        if self.begun < len(capacity.windows):
            ends.append(capacity.windows[self.begun][0] - now)
        return min(ends, default=inf)

    def end_step(self, now: float, seconds: float) -> None:
        self._store(self._net_inflow() * seconds)
        windows, end = self.capacity.windows, (now + seconds) * (1 + _EPSILON)
        while self.begun < len(windows) and windows[self.begun][0] <= end:
            self._store(windows[self.begun][1])
            self.begun += 1

    def _net_inflow(self) -> float:
        net = self._inflow - self.outflow
        return 0.0 if abs(net) <= _EPSILON * self.outflow else net

    def _store(self, units: float) -> None:
        stored = min(self.stored + units, max(self.capacity.burst, self.stored))
        is_zero = abs(stored) < _EPSILON * max(1.0, self.capacity.burst)
        self.stored = 0.0 if is_zero else stored


@dataclass(slots=True, eq=False)
class _Stream:
    """A line in the course of time."""

    line: FluidLine
    #: Units per task. At the first reservoir, which most lines need, the line shares with other
    #: lines of its queue.
    costs: Sequence[tuple[_Reservoir, float]]
    left: float  #: tasks
    drained: Drained
    flow: float = 0.0  #: tasks per second
    saturated: _Reservoir | None = None  #: the reservoir that bounds the flow
    last_wait: str | None = None  #: the name of the limit that bounded it for longer than a moment
    path: list[tuple[float, float]] = field(default_factory=list)

    def serve(self, seconds: float, now: float) -> None:
        """Start the tasks of some seconds, until the time ``now``."""
        if self.saturated is not None and seconds > 2 * _MOMENT:
            self.last_wait = self.saturated.capacity.name
        self.left -= self.flow * seconds
        if self.left <= _EPSILON * self.line.tasks:
            self.left = 0.0
        self.path.append((round(now, _DIGITS), self.left))
        if not self.left:
            self.drained = Drained(round(now, _DIGITS), self.last_wait, self.path)


def drain_times(lines: Sequence[FluidLine]) -> list[Drained]:
    """Return when each line will be empty if no task is added.

    With few lines the result is exact, for a fluid. With many, a line ends when the slowest of its
    limits has let all its tasks pass, each limit considered alone. That is exact where lines need
    one limit, and an estimate where they need several, as no line leaves its share to others.
    """
    if len(lines) <= _MAX_LINES:
        return drain(lines)
    users: defaultdict[Capacity, list[tuple[int, float]]] = defaultdict(list)
    ends = [Drained(0.0, None)] * len(lines)
    for index, line in enumerate(lines):
        paused = next((capacity.name for capacity, _ in line.costs if capacity.rate == 0), None)
        if paused is not None:  # until it is resumed, so it takes no units from others either
            ends[index] = Drained(inf, paused)
            continue
        for capacity, cost in line.costs:
            users[capacity].append((index, line.tasks * cost))
    for capacity, units in users.items():
        passed = _units_passed([lines[index] for index, _ in units], [own for _, own in units])
        for (index, _), until in zip(units, passed, strict=True):
            seconds = round(capacity.seconds_for(until), _DIGITS)
            if seconds > ends[index].seconds:
                ends[index] = Drained(seconds, capacity.name)
    return ends


def _units_passed(lines: Sequence[FluidLine], units: Sequence[float]) -> list[float]:
    """Return how many units one limit has let pass when each line is empty.

    ``units``: those that each line needs. Better ranks go first. Within a rank, queues have equal
    shares, and lines of a queue share by weight.
    """
    passed, before = list(units), 0.0
    by_rank = sorted(range(len(lines)), key=lambda index: lines[index].rank)
    for _, same_rank in groupby(by_rank, key=lambda index: lines[index].rank):
        queues: defaultdict[str, list[int]] = defaultdict(list)
        for index in same_rank:
            queues[lines[index].queue].append(index)
        totals = [sum(units[index] for index in queue) for queue in queues.values()]
        for queue in queues.values():
            weight = sum(lines[index].weight for index in queue)
            level, received = 0.0, 0.0  # units per weight, and units of the queue
            ends = sorted((units[index] / lines[index].weight, index) for index in queue)
            for end, index in ends:
                received += (end - level) * weight
                level, weight = end, weight - lines[index].weight
                passed[index] = before + sum(min(total, received) for total in totals)
        before += sum(totals)
    return passed


def drain(lines: Sequence[FluidLine]) -> list[Drained]:
    """Return when each line is empty if no task is added."""
    uses = Counter(capacity for line in lines for capacity, _ in line.costs)
    reservoirs = {capacity: _Reservoir(capacity, capacity.stored) for capacity in uses}
    streams = []
    for line in lines:
        by_uses = sorted(line.costs, key=lambda cost: -uses[cost[0]])
        costs = [(reservoirs[capacity], cost) for capacity, cost in by_uses]
        end = Drained(inf, costs[0][0].capacity.name) if costs else Drained(0.0, None)
        streams.append(_Stream(line, costs, line.tasks if costs else 0.0, end))
    _let_pass(sorted((one for one in streams if one.left), key=lambda one: one.line.rank))
    return [one.drained for one in streams]


def _let_pass(active: list[_Stream]) -> None:
    """Let time pass until each stream is empty, or nothing changes any more."""
    now = 0.0
    while active:
        reservoirs = dict.fromkeys(one for stream in active for one, _ in stream.costs)
        for reservoir in reservoirs:
            reservoir.begin_step(now)
        for _, same_rank in groupby(active, key=lambda stream: stream.line.rank):
            _set_flows(list(same_rank))
        ends = (stream.left / stream.flow for stream in active if stream.flow > 0)
        changes = (reservoir.seconds_constant(now) for reservoir in reservoirs)
        seconds = min(chain(ends, changes), default=inf)
        if seconds == inf:
            return
        for stream in active:
            stream.serve(seconds, now + seconds)
        for reservoir in reservoirs:
            reservoir.end_step(now, seconds)
        now += seconds
        active = [stream for stream in active if stream.left]


def _set_flows(streams: Sequence[_Stream]) -> None:
    """Raise all flows evenly; those that need a saturated reservoir stay at its level."""
    load: defaultdict[_Reservoir, float] = defaultdict(float)
    rising: defaultdict[_Reservoir, list[tuple[_Stream, float]]] = defaultdict(list)
    for stream, weight in zip(streams, _weights(streams), strict=True):
        stream.flow, stream.saturated = 0.0, None
        for reservoir, cost in stream.costs:
            load[reservoir] += cost * weight
            rising[reservoir].append((stream, weight))
    # The level of a reservoir rises when others stop streams that need it: it is pushed again then.
    levels = [(one.room / load[one], number, one) for number, one in enumerate(load)]
    heapify(levels)
    while levels:
        level, number, reservoir = heappop(levels)
        new_level = max(0.0, reservoir.room) / load[reservoir]
        if new_level > level * (1 + _EPSILON):
            heappush(levels, (new_level, number, reservoir))
            continue
        for stream, weight in rising[reservoir]:
            if stream.saturated is not None:
                continue
            stream.flow, stream.saturated = weight * level, reservoir
            for other, cost in stream.costs:
                other.room -= cost * stream.flow
                other.outflow += cost * stream.flow
                load[other] = max(load[other] - cost * weight, _EPSILON * cost * weight)


def _weights(streams: Sequence[_Stream]) -> list[float]:
    """Return the weight of each stream: queues share a limit equally, lines within a queue."""
    groups = [(stream.costs[0][0], stream.line.queue) for stream in streams]
    whole: defaultdict[tuple[_Reservoir, str], float] = defaultdict(float)
    for stream, group in zip(streams, groups, strict=True):
        whole[group] += stream.line.weight
    return [one.line.weight / whole[group] for one, group in zip(streams, groups, strict=True)]
