"""Similar lines, taken together: the lines of a hundred thousand tenants make 200 lines or fewer.

The sum of similar lines drains through the sum of their limits. Most limits are needed by one line
or by few, as the key of a tenant; each of these lines gets a share of it. A limit that many lines
need, as that of an API, stays one limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log1p

from celery_throttle.observe.forecasts.capacity import Capacity
from celery_throttle.observe.forecasts.fluid import Drained, FluidLine, drain

#: Lines that can be drained in a fraction of a second.
_MAX_LINES = 200

#: Limits needed by at most this number of lines are divided among them.
_MAX_SHARES = 8

#: By how much numbers of similar lines may differ: relatively if they are large, and absolutely if
#: they are small. The first that leaves few kinds of lines is used.
_TOLERANCES = (0.0, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)

#: Above all numbers that occur.
_MAX_NUMBER = 1e18


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with the limits that it has for itself, and those that it shares with many lines."""

    line: FluidLine
    own: tuple[tuple[Capacity, float], ...]  #: with units per task
    shared: tuple[tuple[int, float], ...]  #: indexes of capacities, with units per task
    #: The numbers that two similar lines have in common: tasks, weight, costs, and the seconds that
    #: the line would need if it were alone.
    numbers: tuple[float, ...]

    def kind(self, tolerance: float) -> tuple[object, ...]:
        """Return a value that similar lines have in common."""
        numbers = self.numbers
        if tolerance:
            numbers = tuple(round(log1p(min(n, _MAX_NUMBER)) / tolerance) for n in numbers)
        names = tuple(capacity.name for capacity, _ in self.own)
        indexes = tuple(index for index, _ in self.shared)
        return self.line.rank, self.line.queue, names, indexes, numbers


def drain_times(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return when each line will be empty if no task is added.

    With few lines the result is exact, for a fluid; with more, some per cent off. Where hundreds of
    lines have nothing in common, each limit is considered alone.
    """
    if len(lines) <= _MAX_LINES:
        return drain(lines, capacities)
    divided = _divide(lines, capacities)
    attempts = (_kinds(divided, tolerance) for tolerance in _TOLERANCES)
    kinds = next((found for found in attempts if found), None)
    if kinds is None:
        return _drain_alone(lines, capacities)
    every = list(capacities)
    merged = [_merge([divided[index] for index in kind], every) for kind in kinds]
    ends: dict[int, Drained] = {}
    for kind, drained in zip(kinds, drain(merged, every), strict=True):
        ends.update(dict.fromkeys(kind, drained))
    return [ends[index] for index in range(len(lines))]


def _kinds(lines: Sequence[_Line], tolerance: float) -> list[list[int]] | None:
    """Return lists of the indexes of similar lines; None if there are many."""
    kinds: defaultdict[object, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        kinds[line.kind(tolerance)].append(index)
        if len(kinds) > _MAX_LINES:
            return None
    return list(kinds.values())


def _divide(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[_Line]:
    """Divide the limits that few lines need among them."""
    users = _users(lines)
    most = max(_MAX_SHARES, len(lines) // _MAX_LINES)
    shares: dict[tuple[int, int], Capacity] = {}
    for number, indexes in users.items():
        if len(indexes) <= most:
            shares |= _shares(capacities[number], number, {i: lines[i] for i in indexes})
    found = []
    for index, line in enumerate(lines):
        own = [
            (shares[index, number], cost)
            for number, cost in line.costs
            if (index, number) in shares
        ]
        shared = tuple(sorted(one for one in line.costs if (index, one[0]) not in shares))
        alone = [capacity.seconds_for(line.tasks * cost) for capacity, cost in own]
        costs = [cost for _, cost in (*own, *shared)]
        numbers = (line.tasks, line.weight, *costs, *alone)
        found.append(_Line(line, tuple(own), shared, numbers))
    return found


def _users(lines: Sequence[FluidLine]) -> dict[int, list[int]]:
    """Return the indexes of the lines that need each capacity."""
    users = defaultdict[int, list[int]](list)
    for index, line in enumerate(lines):
        for number, _ in line.costs:
            users[number].append(index)
    return users


def _shares(
    capacity: Capacity, number: int, lines: Mapping[int, FluidLine]
) -> dict[tuple[int, int], Capacity]:
    """Return the share of each of a few lines: its mean rate if it needed this limit alone.

    The result is by index of the line and number of the capacity.
    """
    if len(lines) == 1:
        return {(index, number): capacity for index in lines}
    costs = [dict(line.costs)[number] for line in lines.values()]
    alone = [
        replace(line, costs=((0, cost),)) for line, cost in zip(lines.values(), costs, strict=True)
    ]
    shares = {}
    for index, line, cost, end in zip(lines, alone, costs, drain(alone, [capacity]), strict=True):
        units, seconds = line.tasks * cost, end.seconds - capacity.paused
        share = Capacity(capacity.name, units / seconds, 0.0, 1.0, capacity.paused)
        shares[index, number] = share
    return shares


def _merge(similar: Sequence[_Line], capacities: list[Capacity]) -> FluidLine:
    """Return the sum of similar lines; the sums of their own limits join the capacities."""
    tasks = sum(one.line.tasks for one in similar)

    def mean(costs: Sequence[float]) -> float:
        weighted = (cost * one.line.tasks for cost, one in zip(costs, similar, strict=True))
        return sum(weighted) / tasks

    costs = []
    for own in zip(*(one.own for one in similar), strict=True):
        costs.append((len(capacities), mean([cost for _, cost in own])))
        capacities.append(_add([capacity for capacity, _ in own]))
    shared = zip(*(one.shared for one in similar), strict=True)
    costs += [(same[0][0], mean([cost for _, cost in same])) for same in shared]
    weight = sum(one.line.weight for one in similar)
    return replace(similar[0].line, tasks=tasks, costs=tuple(costs), weight=weight)


def _add(capacities: Sequence[Capacity]) -> Capacity:
    """Return the sum of the capacities of similar lines, which have similar pauses and windows."""
    first = capacities[0]
    return replace(
        first,
        rate=sum(one.rate for one in capacities),
        stored=sum(one.stored for one in capacities),
        burst=sum(one.burst for one in capacities),
        windows=tuple((start, units * len(capacities)) for start, units in first.windows),
    )


def _drain_alone(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return the times as if each line were the last at its limits, and one of them alone busy."""
    units = defaultdict[int, float](float)
    for line in lines:
        for number, cost in line.costs:
            units[number] += line.tasks * cost
    ends = {
        number: Drained(capacities[number].seconds_for(needed), capacities[number].name)
        for number, needed in units.items()
    }
    return [
        max(
            (ends[number] for number, _ in line.costs),
            key=lambda end: end.seconds,
            default=Drained(0.0, None),
        )
        for line in lines
    ]
