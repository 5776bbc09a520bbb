"""Waiting tasks whose units are available now, but which no process takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import has_slots
from celery_throttle.observe.forecasts.states import read_states
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.plan import Plan

#: Lines that are looked at in all queues together, and in each queue at least.
_MAX_LINES, _MIN_LINES = 1000, 50


class OverdueLine(NamedTuple):
    """A line whose tasks are due."""

    tasks: int
    ref: LimitRef  #: the limit and key at which the line waits
    costs: dict[LimitRef, int]  #: of its first task, in millionths


class Overdue(NamedTuple):
    """The lines whose tasks are due, and what their limits can grant."""

    lines: Mapping[str, list[OverdueLine]]  #: by queue
    #: Units, in millionths. A limit that is not defined stops no task, and is left out.
    available: Mapping[LimitRef, int]

    def count_runnable(self, queues: Iterable[str]) -> Counter[LimitRef]:
        """Count the tasks of some queues that could start together, by where they wait."""
        left, found = dict(self.available), Counter[LimitRef]()
        for line in (line for queue in queues for line in self.lines[queue]):
            costs = {ref: cost for ref, cost in line.costs.items() if ref in left and cost}
            tasks = min([line.tasks, *(left[ref] // cost for ref, cost in costs.items())])
            for ref, cost in costs.items():
                left[ref] -= tasks * cost
            found[line.ref] += tasks
        return found


def read_overdue(observer: Observer, queues: Iterable[str], seconds: float = 0.0) -> Plan[Overdue]:
    """Return the lines of some queues whose limits have had room for some seconds.

    Of many lines only some are returned, so runnable tasks are then a lower bound.
    """
    names = sorted(queues)
    most = max(_MIN_LINES, _MAX_LINES // max(1, len(names)))
    lines: dict[str, list[OverdueLine]] = {}
    for queue in names:
        lines[queue] = yield from _overdue_lines(observer, queue, to_us(seconds), most)
    refs = {ref for found in lines.values() for line in found for ref in line.costs}
    states = yield from read_states(observer, refs)
    slots = {ref for ref, state in states.items() if any(map(has_slots, state.limits))}
    for line in (line for found in lines.values() for line in found):
        for ref in line.costs.keys() & slots:
            line.costs[ref] = MILLION  # a task takes one slot, whatever its cost
    return Overdue(lines, {ref: state.available() for ref, state in states.items()})


def _overdue_lines(
    observer: Observer, queue: str, after_us: int, most: int
) -> Plan[list[OverdueLine]]:
    found: list[OverdueLine] = []
    names, skip = [*observer.keys.queue(queue)], 0
    while skip >= 0 and len(found) < most:
        skip, *rows = yield observer.call("list_overdue", names, after_us, skip)
        for tasks, index, *flat in rows:
            fields = [field.decode() for field in flat[1::3]]
            refs = [observer.keys.field_ref(field) for field in fields]
            costs = dict(zip(refs, flat[2::3], strict=True))
            found.append(OverdueLine(tasks, refs[index - 1], costs))
    return found
