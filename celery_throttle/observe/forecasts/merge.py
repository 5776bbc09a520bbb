"""Similar lines, taken together: the lines of a hundred thousand tenants make 200 lines or fewer.

Most limits are needed by one line or by few, as the key of a tenant. Such a limit is considered
alone first, and then stands for the rate at which it lets each of its lines pass. So lines compete
only for limits that many lines need, as that of an API, and the sum of similar lines drains as they
do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, log1p

from celery_throttle.observe.forecasts.fluid import Capacity, Drained, FluidLine, drain

#: Lines that can be drained in a fraction of a second.
_MAX_LINES = 200

#: Limits needed by at most this number of lines are considered alone.
_FEW_LINES = 8

#: By how much numbers of similar lines may differ: relatively if they are large, and absolutely if
#: they are small. The first that leaves few kinds of lines is used.
_TOLERANCES = (0.0, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)

#: Above all numbers that occur.
_MAX_NUMBER = 1e18

#: A line with the costs of the limits that many lines need, and when its other limits would let it
#: be empty.
_Line = tuple[FluidLine, Drained]


def drain_times(lines: Sequence[FluidLine]) -> list[Drained]:
    """Return when each line will be empty if no task is added.

    With few lines the result is exact, for a fluid; with more, some per cent off. Where hundreds of
    lines have nothing in common, each limit is considered alone.
    """
    if len(lines) <= _MAX_LINES:
        return drain(lines)
    users: defaultdict[Capacity, dict[int, float]] = defaultdict(dict)
    for index, line in enumerate(lines):
        for capacity, cost in line.costs:
            users[capacity][index] = cost
    most = max(_FEW_LINES, len(lines) // _MAX_LINES)
    few = {capacity for capacity, costs in users.items() if len(costs) <= most}
    alone = _drain_alone(lines, {capacity: users[capacity] for capacity in few})
    shared = [
        replace(line, costs=tuple(cost for cost in line.costs if cost[0] not in few))
        for line in lines
    ]
    kinds = _find_kinds([*zip(shared, alone, strict=True)])
    if kinds is None:
        return _drain_alone(lines, users)
    ends = [Drained(0.0, None)] * len(lines)
    merged = [_merge([(shared[index], alone[index]) for index in kind]) for kind in kinds]
    for kind, drained in zip(kinds, drain(merged), strict=True):
        for index in kind:
            ends[index] = drained
    return ends


def _drain_alone(
    lines: Sequence[FluidLine], users: dict[Capacity, dict[int, float]]
) -> list[Drained]:
    """Return when each line is empty if it needs one of some limits only: the slowest.

    ``users``: the limits, each with the units per task of the lines that need it, by their indexes.
    """
    ends = [Drained(0.0, None)] * len(lines)
    for capacity, costs in users.items():
        if 1 < len(costs) <= _MAX_LINES:
            found = drain(
                [replace(lines[index], costs=((capacity, cost),)) for index, cost in costs.items()]
            )
        else:
            units = sum(lines[index].tasks * cost for index, cost in costs.items())
            found = [Drained(capacity.seconds_for(units), capacity.name)] * len(costs)
        for index, end in zip(costs, found, strict=True):
            ends[index] = max(ends[index], end, key=lambda one: one.seconds)
    return ends


def _find_kinds(lines: Sequence[_Line]) -> Iterable[list[int]] | None:
    """Return lists of the indexes of similar lines; None if there would be too many."""
    for tolerance in _TOLERANCES:
        kinds: defaultdict[object, list[int]] = defaultdict(list)
        for index, line in enumerate(lines):
            kinds[_kind(line, tolerance)].append(index)
            if len(kinds) > _MAX_LINES:
                break
        else:
            return kinds.values()
    return None


def _kind(similar: _Line, tolerance: float) -> tuple[object, ...]:
    """Return a value that similar lines have in common."""
    line, alone = similar
    numbers = [line.tasks, line.weight, alone.seconds, *(cost for _, cost in line.costs)]
    if tolerance:
        numbers = [round(log1p(min(n, _MAX_NUMBER)) / tolerance) for n in numbers]
    capacities = (capacity for capacity, _ in line.costs)
    return line.rank, line.queue, alone.limit, *capacities, *numbers


def _merge(similar: Sequence[_Line]) -> FluidLine:
    """Return the sum of similar lines; their other limits become one, with the sum of the rates."""
    first, alone = similar[0]
    tasks = sum(line.tasks for line, _ in similar)
    costs = []
    for number, (capacity, _) in enumerate(first.costs):
        units = sum(line.tasks * line.costs[number][1] for line, _ in similar)
        costs.append((capacity, units / tasks))
    if alone.limit is not None:
        rate = sum(line.tasks / (end.seconds or inf) for line, end in similar)
        costs.append((Capacity(alone.limit, rate), 1.0))
    weight = sum(line.weight for line, _ in similar)
    return replace(first, tasks=tasks, costs=tuple(costs), weight=weight)
