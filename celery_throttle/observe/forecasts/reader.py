"""Plans that read waiting tasks and the capacity of limits, and return forecasts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.solver import (
    Capacities,
    Forecast,
    LineFilter,
    WaitingLine,
    belongs_to_fan_out,
    competing_lines,
    drain_lines,
    needs_limit,
    solve,
    start_times,
)
from celery_throttle.observe.forecasts.states import read_states
from celery_throttle.observe.observer import CONSUMED_SECONDS, Observer
from celery_throttle.observe.waiting import MAX_LINES, Waiting
from celery_throttle.operations.lines import END, list_names, waiting_queues
from celery_throttle.operations.plan import Plan, batches

K = TypeVar("K")
T = TypeVar("T")

#: How many lines one call reads by their keys.
_ONLY = 20

#: Lines by their keys.
Lines = dict[bytes, WaitingLine]


class FoundLines(NamedTuple):
    """Lines of waiting tasks that were read."""

    now: int  #: the server's time in microseconds
    lines: Lines
    are_all: bool  #: whether no others wait


def forecast_limit(
    observer: Observer, ref: LimitRef, measured: float | None = None
) -> Plan[Forecast]:
    """Return the forecast of a limit: one key of it, or without a key all of them."""
    is_number = isinstance(measured, (int, float)) and not isinstance(measured, bool)
    if measured is not None and not (is_number and measured > 0):
        raise LimitValueError(
            f"measured is {shown(measured)}; allowed: tasks a second, above 0, or None"
        )
    yield from observer.check_known(ref)
    found = yield from forecast_each(observer, {ref: needs_limit(ref)}, measured={ref: measured})
    return found[ref]


def forecast_fan_out(observer: Observer, key: str, measured: float | None = None) -> Plan[Forecast]:
    """Return the forecast of a fan-out, by the key of its record."""
    found = yield from forecast_each(
        observer, {key: belongs_to_fan_out(key)}, measured={key: measured}
    )
    return found[key]


def forecast_task(
    observer: Observer, queue: str, line: bytes, position: int, queues: Iterable[str]
) -> Plan[Forecast]:
    """Return the forecast of the first tasks of a line, up to a position.

    ``queues``: those with waiting tasks. Of their lines, ``MAX_LINES`` are read at most.
    """
    found = yield from read_all_lines(observer, MAX_LINES, queues)
    if line not in found.lines:
        found.lines.update((yield from read_lines(observer, queue, only=[line])))
    if line not in found.lines:  # it has just become empty
        return solve([], lambda _: True, {}, found.now)
    own = found.lines[line]
    own = found.lines[line] = own._replace(ranks=_first_tasks(own.ranks, position))
    forecasts = yield from forecast_lines(observer, found, {line: lambda one: one is own})
    return forecasts[line]


def forecast_positions(
    observer: Observer, positions: Mapping[tuple[str, bytes], Sequence[int]]
) -> Plan[tuple[dict[tuple[bytes, int], float | None], bool]]:
    """Return the seconds until tasks start, by line and position; None if that is unknown.

    ``positions``: of tasks of each queue and line. Also returns whether all lines were looked at:
    if there are more than ``MAX_LINES``, only those of the tasks, and each may start later.
    """
    starts: dict[tuple[bytes, int], float | None] = {
        (line, one): None for (_, line), each in positions.items() for one in each
    }
    found = yield from read_all_lines(observer, MAX_LINES)
    if not found.are_all:
        found.lines.clear()
        for queue, pairs in groupby(sorted(positions), itemgetter(0)):
            names = [line for _, line in pairs]
            for only in batches(names, _ONLY):
                found.lines.update((yield from read_lines(observer, queue, only=only)))
    own = {line: found.lines[line] for _, line in positions if line in found.lines}
    ids = set(map(id, own.values()))
    lines = competing_lines(found.lines.values(), lambda one: id(one) in ids)
    capacities = yield from _read_capacities(observer, lines, found.now)
    drained = drain_lines(lines, capacities)
    for (_, line), each in positions.items():
        if line in own:
            seconds = start_times(lines, own[line], each, drained, capacities)
            starts.update(zip(((line, one) for one in each), seconds, strict=True))
    return starts, found.are_all


def forecast_each(
    observer: Observer,
    filters: Mapping[K, LineFilter],
    most: int = sys.maxsize,
    queues: Iterable[str] | None = None,
    measured: Mapping[K, float | None] | None = None,
) -> Plan[Mapping[K, Forecast]]:
    """Return a forecast for the lines of each filter; at most so many lines are read.

    ``queues``: those with waiting tasks, if they are known; ``measured``: see :func:`solve`.
    """
    found = yield from read_all_lines(observer, most, queues)
    return (yield from forecast_lines(observer, found, filters, measured))


def forecast_lines(
    observer: Observer,
    found: FoundLines,
    filters: Mapping[K, LineFilter],
    measured: Mapping[K, float | None] | None = None,
) -> Plan[dict[K, Forecast]]:
    """Return a forecast for the lines of each filter, of lines that were read."""
    lines = found.lines.values()
    competing = {one: competing_lines(lines, filters[one]) for one in filters}
    capacities = yield from _read_capacities(observer, chain(*competing.values()), found.now)
    return {
        one: solve(
            some,
            filters[one],
            capacities,
            found.now,
            (measured or {}).get(one),
            are_all=found.are_all,
        )
        for one, some in competing.items()
    }


def _read_capacities(
    observer: Observer, lines: Iterable[WaitingLine], now: int
) -> Plan[Capacities]:
    states = yield from read_states(observer, {ref for line in lines for ref in line.costs})
    return {ref: states[ref].capacities(ref.name, now) for ref in states}


def read_all_lines(
    observer: Observer, most: int = sys.maxsize, queues: Iterable[str] | None = None
) -> Plan[FoundLines]:
    """Return the lines of all queues, about so many at most.

    ``queues``: those with waiting tasks, if they are known.
    """
    if not observer.has_server:
        return FoundLines(observer.local_time(), {}, are_all=True)
    now, names = yield from list_names(observer)
    are_all = True
    if queues is None:
        queues, are_all = yield from waiting_queues(observer.keys, names, most)
    lines: Lines = {}
    for queue in queues:
        lines.update((yield from read_lines(observer, queue, most - len(lines))))
        are_all = are_all and len(lines) <= most
        if not are_all:
            break
    return FoundLines(now, lines, are_all)


def read_some_lines(observer: Observer, waiting: Waiting) -> Plan[Lines]:
    """Return some lines of each queue in which tasks wait at a limit."""
    lines: Lines = {}
    for queue, measured in waiting.queues.items():
        lines.update((yield from read_lines(observer, queue, only=measured.lines)))
    return lines


def read_lines(
    observer: Observer, queue: str, most: int = sys.maxsize, only: Sequence[bytes] = ()
) -> Plan[Lines]:
    """Return the lines of a queue; if there are more than ``most``, not all of them.

    ``only``: the keys of the lines to read, ``_ONLY`` at most; empty for all.
    """
    keys = observer.keys
    lines: Lines = {}  # a scan may return one twice
    names, cursor = [*keys.queue(queue), keys.membership, keys.consumed_queues], b"0"
    while len(lines) <= most:
        cursor, late, is_consumed, *rows = yield observer.call(
            "read_lines", names, to_us(CONSUMED_SECONDS), cursor, *only
        )
        for line, fan_out, weight, requirements, ranks in rows:
            costs = {
                keys.field_ref(field.decode()): float(cost)
                for _, field, cost in _tuples(requirements, 3)
            }
            by_rank = list(_tuples(ranks, 2))
            about = fan_out.decode(), costs, by_rank, queue, late, bool(is_consumed), weight
            lines[line] = WaitingLine(*about)
        if cursor == END:
            break
    return lines


def _tuples(flat: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return zip(*[iter(flat)] * size, strict=True)


def _first_tasks(ranks: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    first = []
    for rank, tasks in ranks:
        first.append((rank, min(tasks, count)))
        count -= tasks
        if count <= 0:
            break
    return first
