"""Lines that are served alike, as groups: a hundred thousand tenants may be a handful of them.

Most limits are needed by one line, or by few: the key of a tenant. Lines and such limits hang
together in clusters, and clusters that are alike flow alike. What they share with all others, such
as the limit of an API that every tenant calls, sees them as often as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import asinh
from typing import Any

from celery_throttle.forecasts.capacity import Store, Supply
from celery_throttle.forecasts.fluid import Emptied, Group, Line, run

#: How far numbers may differ where clusters are taken to be alike: in parts of what is large, and
#: of a tenth. The first counts with which there are few groups.
_GRAINS = (0.0, 0.01, 0.1, 0.5, 2.0)

#: The same for numbers of tasks of the lines in a group; and how many there may be in all.
_FINE, _NUMBERS = (0.0, 0.005, 0.02, 0.1), 2000

#: Sorts of clusters that are few; groups beyond which it would take too long; and lines that may
#: need a limit of one cluster.
_FEW, _MOST, _OWN = 200, 600, 8


def empty_times(lines: Sequence[Line], supplies: Sequence[Supply]) -> list[Emptied]:
    """When each line will be empty if no task is added.

    While there are few sorts of lines it is exact, as a fluid is; above that some per cent off.
    Where more than some hundred sorts all differ, each limit is looked at by itself.
    """
    uses = Counter(supply for line in lines for supply, _ in line.costs)
    most = max(_OWN, len(lines) // _FEW)
    shared = {supply for supply, count in uses.items() if count > most}
    whole = _Whole(lines, supplies, shared, uses)
    clusters = _clusters(lines, whole.shared)
    sorts = next(found for grain in _GRAINS if (found := whole.sorts(clusters, grain)) is not None)
    if sum(len(alike[0]) for alike in sorts) > _MOST:
        return _limit_by_limit(lines, supplies)
    stores = {supply: Store(supplies[supply], shared=True) for supply in whole.shared}
    most_numbers = max(20, _NUMBERS // len(sorts)) if sorts else 0
    groups = [group for alike in sorts for group in whole.groups(alike, stores, most_numbers)]
    run([group for group, _ in groups])
    ends: dict[int, Emptied] = {}
    for group, members in groups:
        for emptied, places in zip(group.emptied, members, strict=True):
            ends.update(dict.fromkeys(places, emptied))
    return [ends[place] for place in range(len(lines))]


def _limit_by_limit(lines: Sequence[Line], supplies: Sequence[Supply]) -> list[Emptied]:
    """As if each line were the last at each of its limits, and only one of these were busy."""
    units: Counter[int] = Counter()
    for line in lines:
        for supply, cost in line.costs:
            units[supply] += line.tasks * cost  # type: ignore[assignment]  # Counters take floats
    ends = {}
    for supply, count in units.items():
        group = Group([(Store(supplies[supply], shared=True), 1.0)], 0, 1.0, "", [(count, 1)])
        run([group])
        (ends[supply],) = group.emptied
    return [
        max(
            (ends[supply] for supply, _ in line.costs),
            key=lambda end: end.seconds,
            default=Emptied(0.0, None),
        )
        for line in lines
    ]


def _clusters(lines: Sequence[Line], shared: set[int]) -> list[list[int]]:
    """Places of lines that hang together by limits that are not shared by all."""
    head = list(range(len(lines)))

    def head_of(place: int) -> int:
        while head[place] != place:
            head[place] = place = head[head[place]]
        return place

    first: dict[int, int] = {}
    for place, line in enumerate(lines):
        for supply, _ in line.costs:
            if supply not in shared:
                head[head_of(place)] = head_of(first.setdefault(supply, place))
    clusters = defaultdict(list)
    for place in range(len(lines)):
        clusters[head_of(place)].append(place)
    return list(clusters.values())


def _rounded(number: float, grain: float) -> float:
    return round(asinh(10 * number) / grain) if grain else number


def _look(supply: Supply, grain: float) -> tuple[Any, ...]:
    steps: tuple[Any, ...] = supply.steps
    if grain and steps:
        steps = (len(steps), _rounded(steps[0][0], grain))
    changing = _rounded(supply.stored, grain), _rounded(supply.paused, grain)
    return supply.name, supply.rate, supply.most, *changing, steps


@dataclass(frozen=True, slots=True)
class _Whole:
    """All lines, all supplies, which of these many lines share, and by how many each is needed."""

    lines: Sequence[Line]
    supplies: Sequence[Supply]
    shared: set[int]
    uses: Mapping[int, int]

    def sorts(self, clusters: Iterable[list[int]], grain: float) -> list[list[list[int]]] | None:
        """Clusters that are alike, the lines of each in the same order; None if there are many."""
        found: defaultdict[Any, list[list[int]]] = defaultdict(list)
        for cluster in clusters:
            marks = sorted((self._mark(place, grain), place) for place in cluster)
            order = [place for _, place in marks]
            sort: tuple[Any, ...] = marks[0][0]
            if len(order) > 1:
                tasks = [_rounded(self.lines[place].tasks, grain) for place in order]
                sort = (*(mark for mark, _ in marks), *tasks, *self._ties(order, grain))
            found[sort].append(order)
            if len(found) > _FEW and grain != _GRAINS[-1]:
                return None
        return list(found.values())

    def _own(self, line: Line, grain: float) -> list[tuple[tuple[Any, ...], float, int]]:
        return sorted(
            (_look(self.supplies[supply], grain), cost, supply)
            for supply, cost in line.costs
            if supply not in self.shared
        )

    def _mark(self, place: int, grain: float) -> tuple[Any, ...]:
        """All that makes a line flow as it does, but for who else needs its limits."""
        line = self.lines[place]
        shared = tuple(sorted(cost for cost in line.costs if cost[0] in self.shared))
        own = tuple(look[:2] for look in self._own(line, grain))
        return line.rank, line.weight, line.queue, shared, own

    def _ties(self, order: Iterable[int], grain: float) -> list[int]:
        """Which of the limits of several lines are the same."""
        numbers: dict[int, int] = {}
        return [
            numbers.setdefault(supply, len(numbers))
            for place in order
            for _, _, supply in self._own(self.lines[place], grain)
        ]

    def groups(
        self, alike: Sequence[Sequence[int]], stores: dict[int, Store], most_numbers: int
    ) -> list[tuple[Group, list[list[int]]]]:
        """Groups of clusters that are alike, and for each of their counts the places of lines."""
        own: dict[int, Store] = {}
        made = []
        for number, place in enumerate(alike[0]):
            line = self.lines[place]
            members = [[cluster[number] for cluster in alike]]
            if len(alike[0]) == 1:
                members = self._by_tasks(members[0], most_numbers)
            costs = []
            for supply, cost in sorted(line.costs, key=lambda cost: -self.uses[cost[0]]):
                store = stores.get(supply) or own.get(supply)
                if store is None:
                    store = own[supply] = Store(self.supplies[supply], shared=False)
                costs.append((store, cost))
            counts = [
                (sum(self.lines[one].tasks for one in same) / len(same), len(same))
                for same in members
            ]
            made.append((Group(costs, line.rank, line.weight, line.queue, counts), members))
        return made

    def _by_tasks(self, places: Iterable[int], most: int) -> list[list[int]]:
        """Lines with the same number of tasks, or about the same, the least first."""
        found: dict[float, list[int]] = {}
        for grain in _FINE:
            found = defaultdict(list)
            for place in places:
                found[_rounded(self.lines[place].tasks, grain)].append(place)
            if len(found) <= most:
                break
        return [found[tasks] for tasks in sorted(found)]
