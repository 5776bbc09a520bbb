"""Similar lines, taken together: the lines of a hundred thousand tenants make 200 lines or fewer.

Most limits are needed by one line or by few, as the key of a tenant. Such a limit is considered
alone first, and then stands for the rate at which it lets each of its lines pass. So lines compete
only for limits that many lines need, as that of an API, and the sum of similar lines drains as they
do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log1p

from celery_throttle.observe.forecasts.capacity import Capacity
from celery_throttle.observe.forecasts.fluid import Drained, FluidLine, drain

#: Lines that can be drained in a fraction of a second.
_MAX_LINES = 200

#: Limits needed by at most this number of lines are considered alone.
_FEW_LINES = 8

#: By how much numbers of similar lines may differ: relatively if they are large, and absolutely if
#: they are small. The first that leaves few kinds of lines is used.
_TOLERANCES = (0.0, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)

#: Above all numbers that occur.
_MAX_NUMBER = 1e18

_AT_ONCE = Drained(0.0, None)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that competes only for the limits that many lines need."""

    line: FluidLine  #: with the costs of these limits, by their index
    alone: Drained  #: when the other limits would let it be empty

    def kind(self, tolerance: float) -> tuple[object, ...]:
        """Return a value that similar lines have in common."""
        line = self.line
        numbers = line.tasks, line.weight, self.alone.seconds, *(cost for _, cost in line.costs)
        if tolerance:
            numbers = tuple(round(log1p(min(n, _MAX_NUMBER)) / tolerance) for n in numbers)
        indexes = tuple(index for index, _ in line.costs)
        return line.rank, line.queue, self.alone.limit, indexes, numbers


def drain_times(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return when each line will be empty if no task is added.

    With few lines the result is exact, for a fluid; with more, some per cent off. Where hundreds of
    lines have nothing in common, each limit is considered alone.
    """
    if len(lines) <= _MAX_LINES:
        return drain(lines, capacities)
    users = _users(lines)
    most = max(_FEW_LINES, len(lines) // _MAX_LINES)
    few = {number: users[number] for number in users if len(users[number]) <= most}
    divided = []
    for line, alone in zip(lines, _drain_alone(lines, capacities, few), strict=True):
        costs = tuple(sorted(cost for cost in line.costs if cost[0] not in few))
        divided.append(_Line(replace(line, costs=costs), alone))
    attempts = (_kinds(divided, tolerance) for tolerance in _TOLERANCES)
    kinds = next((found for found in attempts if found), None)
    if kinds is None:
        return _drain_alone(lines, capacities, users)
    every = list(capacities)
    merged = [_merge([divided[index] for index in kind], every) for kind in kinds]
    ends: dict[int, Drained] = {}
    for kind, drained in zip(kinds, drain(merged, every), strict=True):
        ends.update(dict.fromkeys(kind, drained))
    return [ends[index] for index in range(len(lines))]


def _users(lines: Sequence[FluidLine]) -> dict[int, dict[int, float]]:
    """Return, for each capacity, the indexes of the lines that need it, with units per task."""
    users = defaultdict[int, dict[int, float]](dict)
    for index, line in enumerate(lines):
        for number, cost in line.costs:
            users[number][index] = cost
    return users


def _drain_alone(
    lines: Sequence[FluidLine],
    capacities: Sequence[Capacity],
    users: Mapping[int, Mapping[int, float]],
) -> list[Drained]:
    """Return when each line is empty if it needs one of some limits only: the slowest."""
    ends = [_AT_ONCE] * len(lines)
    for number, costs in users.items():
        capacity = capacities[number]
        found: Sequence[Drained]
        if 1 < len(costs) <= _MAX_LINES:
            some = [replace(lines[i], costs=((0, cost),)) for i, cost in costs.items()]
            found = drain(some, [capacity])
        else:
            units = sum(lines[i].tasks * cost for i, cost in costs.items())
            found = [Drained(capacity.seconds_for(units), capacity.name)] * len(costs)
        for index, end in zip(costs, found, strict=True):
            ends[index] = max(ends[index], end, key=lambda one: one.seconds)
    return ends


def _kinds(lines: Sequence[_Line], tolerance: float) -> list[list[int]] | None:
    """Return lists of the indexes of similar lines; None if there are many."""
    kinds: defaultdict[object, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        kinds[line.kind(tolerance)].append(index)
        if len(kinds) > _MAX_LINES:
            return None
    return list(kinds.values())


def _merge(similar: Sequence[_Line], capacities: list[Capacity]) -> FluidLine:
    """Return the sum of similar lines; the rate of their other limits joins the capacities."""
    lines, first = [one.line for one in similar], similar[0]
    tasks = sum(line.tasks for line in lines)
    costs = []
    for same in zip(*(line.costs for line in lines), strict=True):
        units = sum(line.tasks * cost for line, (_, cost) in zip(lines, same, strict=True))
        costs.append((same[0][0], units / tasks))
    if first.alone.limit is not None:
        rate = sum(one.line.tasks / (one.alone.seconds or inf) for one in similar)
        costs.append((len(capacities), 1.0))
        capacities.append(Capacity(first.alone.limit, rate))
    weight = sum(line.weight for line in lines)
    return replace(first.line, tasks=tasks, costs=tuple(costs), weight=weight)
