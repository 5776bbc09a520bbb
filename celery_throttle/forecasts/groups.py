"""Groups of similar lines: the lines of a hundred thousand tenants may make a handful of groups.

Most limits are needed by one line or by few, as the key of a tenant. Lines that are connected by
such limits are a cluster, and similar clusters drain alike. At a limit that many lines share, such
as that of an API, each cluster counts as often as it occurs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import asinh
from typing import Any

from celery_throttle.forecasts.capacity import Capacity, Reservoir
from celery_throttle.forecasts.fluid import Drained, FluidLine, LineGroup, drain

#: Steps to which numbers are rounded when clusters are compared: relative for large numbers, and
#: absolute (in tenths) for small ones. The first step that leaves few kinds of clusters is used.
_ROUNDINGS = (0.0, 0.01, 0.1, 0.5, 2.0)

#: The same for the numbers of tasks of the lines in a group, and the most different numbers in all.
_TASK_ROUNDINGS, _MAX_TASK_COUNTS = (0.0, 0.005, 0.02, 0.1), 2000

#: Kinds of clusters that are few, and groups that can be drained together in reasonable time.
_MAX_KINDS, _MAX_GROUPS = 200, 600

#: Limits needed by at most this number of lines connect them to clusters.
_MAX_CLUSTER_LINES = 8


def drain_times(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return when each line will be empty if no task is added.

    With few kinds of lines the result is exact, for a fluid; with more, some per cent off. With
    more than some hundred kinds, each limit is considered alone.
    """
    uses = Counter(number for line in lines for number, _ in line.costs)
    max_uses = max(_MAX_CLUSTER_LINES, len(lines) // _MAX_KINDS)
    shared = {number for number, count in uses.items() if count > max_uses}
    network = _Network(lines, capacities, shared, uses)
    clusters = _clusters(lines, shared)
    attempts = (network.kinds(clusters, rounding) for rounding in _ROUNDINGS)
    kinds = next(found for found in attempts if found is not None)
    if sum(len(kind[0]) for kind in kinds) > _MAX_GROUPS:
        return _limit_by_limit(lines, capacities)
    reservoirs = {number: Reservoir(capacities[number], shared=True) for number in shared}
    max_counts = max(20, _MAX_TASK_COUNTS // len(kinds)) if kinds else 0
    groups = [group for kind in kinds for group in network.groups(kind, reservoirs, max_counts)]
    drain([group for group, _ in groups])
    ends: dict[int, Drained] = {}
    for group, members in groups:
        for drained, indexes in zip(group.drained, members, strict=True):
            ends.update(dict.fromkeys(indexes, drained))
    return [ends[index] for index in range(len(lines))]


def _limit_by_limit(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[Drained]:
    """Return the times as if each line were the last at its limits, and one of them alone busy."""
    units: Counter[int] = Counter()
    for line in lines:
        for number, cost in line.costs:
            units[number] += line.tasks * cost  # type: ignore[assignment]  # Counters take floats
    ends = {}
    for number, count in units.items():
        reservoir = Reservoir(capacities[number], shared=True)
        group = LineGroup([(reservoir, 1.0)], 0, 1.0, "", [(count, 1)])
        drain([group])
        (ends[number],) = group.drained
    return [
        max(
            (ends[number] for number, _ in line.costs),
            key=lambda end: end.seconds,
            default=Drained(0.0, None),
        )
        for line in lines
    ]


def _clusters(lines: Sequence[FluidLine], shared: set[int]) -> list[list[int]]:
    """Return clusters: indexes of lines that are connected by limits that few lines share."""
    parent = list(range(len(lines)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[int, int] = {}
    for index, line in enumerate(lines):
        for number, _ in line.costs:
            if number not in shared:
                parent[root(index)] = root(first.setdefault(number, index))
    clusters = defaultdict(list)
    for index in range(len(lines)):
        clusters[root(index)].append(index)
    return list(clusters.values())


def _round(value: float, rounding: float) -> float:
    return round(asinh(10 * value) / rounding) if rounding else value


def _capacity_key(capacity: Capacity, rounding: float) -> tuple[Any, ...]:
    windows: tuple[Any, ...] = capacity.windows
    if rounding and windows:
        windows = (len(windows), _round(windows[0][0], rounding))
    state = _round(capacity.stored, rounding), _round(capacity.paused, rounding)
    return capacity.name, capacity.rate, capacity.burst, *state, windows


@dataclass(frozen=True, slots=True)
class _Network:
    """Lines and the capacities that they need, which are referred to by their index."""

    lines: Sequence[FluidLine]
    capacities: Sequence[Capacity]
    shared: set[int]  #: capacities that many lines share
    uses: Mapping[int, int]  #: for each capacity, the number of lines that need it

    def kinds(self, clusters: Iterable[list[int]], rounding: float) -> list[list[list[int]]] | None:
        """Return lists of similar clusters, lines in the same order; None if there are many."""
        found: defaultdict[Any, list[list[int]]] = defaultdict(list)
        for cluster in clusters:
            pairs = sorted((self._line_key(index, rounding), index) for index in cluster)
            order = [index for _, index in pairs]
            key: tuple[Any, ...] = pairs[0][0]
            if len(order) > 1:
                tasks = [_round(self.lines[index].tasks, rounding) for index in order]
                links = self._links(order, rounding)
                key = (*(line_key for line_key, _ in pairs), *tasks, *links)
            found[key].append(order)
            if len(found) > _MAX_KINDS and rounding != _ROUNDINGS[-1]:
                return None
        return list(found.values())

    def _own(self, line: FluidLine, rounding: float) -> list[tuple[tuple[Any, ...], float, int]]:
        """Return key, cost and index of the capacities that few lines share."""
        return sorted(
            (_capacity_key(self.capacities[number], rounding), cost, number)
            for number, cost in line.costs
            if number not in self.shared
        )

    def _line_key(self, index: int, rounding: float) -> tuple[Any, ...]:
        """Return what determines how a line drains, apart from other lines at its limits."""
        line = self.lines[index]
        shared = tuple(sorted(cost for cost in line.costs if cost[0] in self.shared))
        own = tuple(row[:2] for row in self._own(line, rounding))
        return line.rank, line.weight, line.queue, shared, own

    def _links(self, order: Iterable[int], rounding: float) -> list[int]:
        """Return which capacities of several lines are the same."""
        numbers: dict[int, int] = {}
        return [
            numbers.setdefault(number, len(numbers))
            for index in order
            for _, _, number in self._own(self.lines[index], rounding)
        ]

    def groups(
        self, kind: Sequence[Sequence[int]], reservoirs: dict[int, Reservoir], max_counts: int
    ) -> list[tuple[LineGroup, list[list[int]]]]:
        """Return the groups of similar clusters, and for each of their counts its lines."""
        own: dict[int, Reservoir] = {}
        found = []
        for position, index in enumerate(kind[0]):
            line = self.lines[index]
            members = [[cluster[position] for cluster in kind]]
            if len(kind[0]) == 1:
                members = self._by_tasks(members[0], max_counts)
            costs = []
            for number, cost in sorted(line.costs, key=lambda cost: -self.uses[cost[0]]):
                reservoir = reservoirs.get(number) or own.get(number)
                if reservoir is None:
                    reservoir = own[number] = Reservoir(self.capacities[number], shared=False)
                costs.append((reservoir, cost))
            counts = [
                (sum(self.lines[one].tasks for one in equal) / len(equal), len(equal))
                for equal in members
            ]
            found.append((LineGroup(costs, line.rank, line.weight, line.queue, counts), members))
        return found

    def _by_tasks(self, indexes: Iterable[int], max_counts: int) -> list[list[int]]:
        """Return lines by their numbers of tasks, which may be rounded, the least first."""
        found: dict[float, list[int]] = {}
        for rounding in _TASK_ROUNDINGS:
            found = defaultdict(list)
            for index in indexes:
                found[_round(self.lines[index].tasks, rounding)].append(index)
            if len(found) <= max_counts:
                break
        return [found[tasks] for tasks in sorted(found)]
