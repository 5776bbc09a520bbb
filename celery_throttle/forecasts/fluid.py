"""When lines of waiting tasks will be empty: tasks as a fluid, limits as what lets it through.

At any time every line flows as fast as its limits let it: those of a better rank first, and within
a rank in proportion to their weights, until a limit gives no more (progressive filling, weighted
max-min fairness). That stays so until something happens: a line is empty, a pause ends, a window
begins, what a limit had stored is used up. So time goes by in few steps, however many tasks wait.

Lines that are served alike are one group, see :mod:`celery_throttle.forecasts.groups`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf

from celery_throttle.forecasts.capacity import DUST, Store


@dataclass(frozen=True, slots=True)
class Line:
    """Tasks that wait.

    Attributes:
        tasks: how many.
        costs: of each task: index of the supply, and units.
        rank: the lowest is served first.
        weight: its share among lines of its rank and queue. Queues have equal shares.
        queue: in which it is.
    """

    tasks: float
    costs: tuple[tuple[int, float], ...]
    rank: int = 0
    weight: float = 1.0
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Emptied:
    """When a line is empty: in so many seconds, or never (``inf``).

    ``bound`` is the name of the limit that it waited for last; None if it has not to wait.
    """

    seconds: float
    bound: str | None


@dataclass(slots=True, eq=False)
class Group:
    """Lines that are served alike: at any time as many tasks of each have started.

    Attributes:
        costs: the stores that each line needs, and units a task. The first is the one at which
            it has its turns with the other lines of its queue.
        counts: how many tasks wait in how many lines, the least first.
        lines: those that are not empty yet.
    """

    costs: Sequence[tuple[Store, float]]
    rank: int
    weight: float
    queue: str
    counts: list[tuple[float, int]]
    lines: int = field(init=False)
    emptied: list[Emptied] = field(init=False, default_factory=list)
    flow: float = field(init=False, default=0.0)
    stopped_by: Store | None = field(init=False, default=None)
    bound: Store | None = field(init=False, default=None)
    _served: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.lines = sum(lines for _, lines in self.counts)

    def lines_at(self, store: Store) -> int:
        """How many need one and the same store."""
        return self.lines if store.shared else 1

    @property
    def left(self) -> float:
        """Tasks until the next of the lines is empty."""
        return self.counts[len(self.emptied)][0] - self._served

    def serve(self, tasks: float, now: float) -> None:
        """So many tasks of each line have started."""
        self._served += tasks
        while self.lines and self.left <= DUST * max(1.0, self._served):
            self.lines -= self.counts[len(self.emptied)][1]
            self.emptied.append(
                Emptied(now, None if self.bound is None else self.bound.supply.name)
            )


def run(groups: Sequence[Group]) -> None:
    """Let time go by until every line is empty, or it is known that some will never be."""
    for group in groups:
        if not group.costs:
            group.serve(group.counts[-1][0], 0.0)
    active = sorted((one for one in groups if one.lines), key=lambda group: group.rank)
    stores = list({id(store): store for group in active for store, _ in group.costs}.values())
    now, at_once = 0.0, True
    while active:
        if at_once:
            active = _serve_at_once(active, stores, now)
        used = _flow(active, {store: _room(store, now) for store in stores})
        at_once = any(group.stopped_by is None for group in active)
        if at_once:
            continue
        for group in active:
            group.bound = group.stopped_by
        seconds = _seconds(active, stores, used, now)
        if seconds == inf:
            break
        for group in active:
            group.serve(min(group.flow * seconds, group.left), now + seconds)
        more = [store.pass_by(now, seconds, used[store]) for store in stores]
        at_once = any(more)
        now += seconds
        active = [group for group in active if group.lines]
    for group in active:
        group.emptied += [Emptied(inf, None)] * (len(group.counts) - len(group.emptied))


def _serve_at_once(active: list[Group], stores: Sequence[Store], now: float) -> list[Group]:
    """Let pass what limits have stored; gives the groups that are not empty then.

    It is shared as the flow is. The time stands still.
    """
    share = 0.0
    while active and share < 1:
        used = _flow(active, {store: store.at_once(now) for store in stores})
        share = min([1.0, *(group.left / group.flow for group in active if group.flow > 0)])
        for group in active:
            group.serve(min(group.flow * share, group.left), now)
        for store, amount in used.items():
            store.take(amount * share)
        active = [group for group in active if group.lines]
    return active


def _room(store: Store, now: float) -> float:
    """Units a second that can pass."""
    if store.supply.paused > now or store.stored < 0:
        return 0.0
    return inf if store.stored > 0 else store.rate


def _flow(active: Sequence[Group], room: dict[Store, float]) -> defaultdict[Store, float]:
    """Tell each group the flow of each of its lines, by rank; gives what each store lets out."""
    used: defaultdict[Store, float] = defaultdict(float)
    for _, same_rank in groupby(active, key=lambda group: group.rank):
        _fill(list(same_rank), room, used)
    return used


def _fill(groups: Sequence[Group], room: dict[Store, float], used: dict[Store, float]) -> None:
    """Raise the flow of all evenly; whom a store stops that has no more room stays at its level."""
    load: defaultdict[Store, float] = defaultdict(float)
    rising: defaultdict[Store, list[tuple[Group, float]]] = defaultdict(list)
    weights, shares = _weights(groups), {}
    for group, weight in zip(groups, weights, strict=True):
        group.flow, group.stopped_by = inf, None
        shares[group] = [
            (store, cost * weight * group.lines_at(store)) for store, cost in group.costs
        ]
        for store, share in shares[group]:
            load[store] += share
            rising[store].append((group, weight))
    # A store's level rises while others stop those that need it: then it is looked at again.
    levels = [(room[store] / load[store], number, store) for number, store in enumerate(load)]
    heapify(levels)
    while levels:
        level, number, store = heappop(levels)
        if level == inf:
            break
        new_level = max(0.0, room[store]) / load[store]
        if new_level > level * (1 + DUST):
            heappush(levels, (new_level, number, store))
            continue
        stopped = [one for one in rising[store] if one[0].stopped_by is None]
        for group, weight in stopped:
            group.flow, group.stopped_by = weight * level, store
            for other, share in shares[group]:
                room[other] -= share * level
                load[other] = max(load[other] - share, DUST * share)
                used[other] += share * level
        if stopped:
            room[store] = 0.0


def _weights(groups: Sequence[Group]) -> list[float]:
    """Of each of its lines: queues have their turns at a limit, and within a queue lines."""
    turns = [(group.costs[0][0], group.queue) for group in groups]
    whole: defaultdict[tuple[Store, str], float] = defaultdict(float)
    for group, turn in zip(groups, turns, strict=True):
        whole[turn] += group.weight * group.lines_at(turn[0])
    return [group.weight / whole[turn] for group, turn in zip(groups, turns, strict=True)]


def _seconds(
    active: Sequence[Group], stores: Sequence[Store], used: dict[Store, float], now: float
) -> float:
    """Until something happens."""
    ends = [group.left / group.flow for group in active if group.flow > 0]
    ends += [store.lasts(used[store]) for store in stores]
    return min([inf, *ends, *(store.next_change(now) - now for store in stores)])
