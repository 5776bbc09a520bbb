"""When lines of waiting tasks will be empty: tasks as a fluid that drains through limits.

At any time every line flows as fast as its limits admit: better ranks first, and within a rank in
proportion to weights, until a limit is saturated (progressive filling, which gives weighted max-min
fairness). The flows stay constant until a line is empty, a pause ends, a window begins or a burst
is used up. So few steps of time are enough, however many tasks wait.

Lines that drain alike are one group, see :mod:`celery_throttle.forecasts.groups`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf

from celery_throttle.forecasts.capacity import EPSILON, Reservoir


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
class LineGroup:
    """Lines that drain alike: at any time the same number of tasks of each has started."""

    #: The reservoirs that each line needs, and units per task. At the first one the line shares
    #: with other lines of its queue.
    costs: Sequence[tuple[Reservoir, float]]
    rank: int
    weight: float
    queue: str
    #: Pairs of a number of tasks and the number of lines that have it, the least first.
    counts: list[tuple[float, int]]
    lines: int = field(init=False)  #: that are not empty yet
    drained: list[Drained] = field(init=False, default_factory=list)  #: for each of the counts
    #: Tasks per second that start from each line, bounded by the ``saturated`` reservoir, and in
    #: the previous step of time by ``last_wait``.
    flow: float = field(init=False, default=0.0)
    saturated: Reservoir | None = field(init=False, default=None)
    last_wait: Reservoir | None = field(init=False, default=None)
    _served: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.lines = sum(lines for _, lines in self.counts)

    def lines_at(self, reservoir: Reservoir) -> int:
        """Return how many lines need one and the same reservoir."""
        return self.lines if reservoir.shared else 1

    @property
    def remaining(self) -> float:
        """Tasks until the next of the lines is empty."""
        return self.counts[len(self.drained)][0] - self._served

    def serve(self, tasks: float, now: float) -> None:
        """Start this number of tasks of each line."""
        self._served += tasks
        while self.lines and self.remaining <= EPSILON * max(1.0, self._served):
            self.lines -= self.counts[len(self.drained)][1]
            limit = None if self.last_wait is None else self.last_wait.capacity.name
            self.drained.append(Drained(now, limit))


def drain(groups: Sequence[LineGroup]) -> None:
    """Let time pass until each line is empty, or known to be never empty."""
    for group in groups:
        if not group.costs:
            group.serve(group.counts[-1][0], 0.0)
    active = sorted((one for one in groups if one.lines), key=lambda group: group.rank)
    unique = {id(reservoir): reservoir for group in active for reservoir, _ in group.costs}
    reservoirs = list(unique.values())
    now, has_stored = 0.0, True
    while active:
        if has_stored:
            active = _serve_stored(active, reservoirs, now)
        used = _set_flows(active, {one: _max_outflow(one, now) for one in reservoirs})
        has_stored = any(group.saturated is None for group in active)
        if has_stored:
            continue
        for group in active:
            group.last_wait = group.saturated
        seconds = _next_step(active, reservoirs, used, now)
        if seconds == inf:
            break
        for group in active:
            group.serve(min(group.flow * seconds, group.remaining), now + seconds)
        changed = [one.advance(now, seconds, used[one]) for one in reservoirs]
        has_stored = any(changed)
        now += seconds
        active = [group for group in active if group.lines]
    for group in active:
        group.drained += [Drained(inf, None)] * (len(group.counts) - len(group.drained))


def _serve_stored(
    active: list[LineGroup], reservoirs: Sequence[Reservoir], now: float
) -> list[LineGroup]:
    """Let stored units pass at once, shared as flows are. Returns the groups that are not empty."""
    share = 0.0
    while active and share < 1:
        used = _set_flows(active, {one: one.available(now) for one in reservoirs})
        share = min([1.0, *(group.remaining / group.flow for group in active if group.flow > 0)])
        for group in active:
            group.serve(min(group.flow * share, group.remaining), now)
        for reservoir, amount in used.items():
            reservoir.take(amount * share)
        active = [group for group in active if group.lines]
    return active


def _max_outflow(reservoir: Reservoir, now: float) -> float:
    """Return units per second that can pass."""
    if reservoir.capacity.paused > now or reservoir.stored < 0:
        return 0.0
    return inf if reservoir.stored > 0 else reservoir.rate


def _set_flows(
    active: Sequence[LineGroup], room: dict[Reservoir, float]
) -> defaultdict[Reservoir, float]:
    """Set the flow of each group, by rank. Returns the outflow of each reservoir.

    ``room`` is what each reservoir admits; it is changed.
    """
    used: defaultdict[Reservoir, float] = defaultdict(float)
    for _, same_rank in groupby(active, key=lambda group: group.rank):
        _fill(list(same_rank), room, used)
    return used


def _fill(
    groups: Sequence[LineGroup], room: dict[Reservoir, float], used: dict[Reservoir, float]
) -> None:
    """Raise all flows evenly; those that need a saturated reservoir stay at its level."""
    load: defaultdict[Reservoir, float] = defaultdict(float)
    rising: defaultdict[Reservoir, list[tuple[LineGroup, float]]] = defaultdict(list)
    weights, shares = _weights(groups), {}
    for group, weight in zip(groups, weights, strict=True):
        group.flow, group.saturated = inf, None
        shares[group] = [(one, cost * weight * group.lines_at(one)) for one, cost in group.costs]
        for reservoir, share in shares[group]:
            load[reservoir] += share
            rising[reservoir].append((group, weight))
    # The level of a reservoir rises when others stop groups that need it: then it is pushed again.
    levels = [(room[one] / load[one], number, one) for number, one in enumerate(load)]
    heapify(levels)
    while levels:
        level, number, reservoir = heappop(levels)
        if level == inf:
            break
        new_level = max(0.0, room[reservoir]) / load[reservoir]
        if new_level > level * (1 + EPSILON):
            heappush(levels, (new_level, number, reservoir))
            continue
        stopped = [one for one in rising[reservoir] if one[0].saturated is None]
        for group, weight in stopped:
            group.flow, group.saturated = weight * level, reservoir
            for other, share in shares[group]:
                room[other] -= share * level
                load[other] = max(load[other] - share, EPSILON * share)
                used[other] += share * level
        if stopped:
            room[reservoir] = 0.0


def _weights(groups: Sequence[LineGroup]) -> list[float]:
    """Return the weight of each line: queues share a limit equally, lines share within a queue."""
    keys = [(group.costs[0][0], group.queue) for group in groups]
    whole: defaultdict[tuple[Reservoir, str], float] = defaultdict(float)
    for group, key in zip(groups, keys, strict=True):
        whole[key] += group.weight * group.lines_at(key[0])
    return [group.weight / whole[key] for group, key in zip(groups, keys, strict=True)]


def _next_step(
    active: Sequence[LineGroup],
    reservoirs: Sequence[Reservoir],
    used: dict[Reservoir, float],
    now: float,
) -> float:
    """Return seconds in which all flows stay constant."""
    ends = [group.remaining / group.flow for group in active if group.flow > 0]
    ends += [one.seconds_to_zero(used[one]) for one in reservoirs]
    return min([inf, *ends, *(one.next_change(now) - now for one in reservoirs)])
