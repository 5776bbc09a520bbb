"""Plans that read waiting tasks and the capacity of limits, and return forecasts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.solver import (
    Forecast,
    LineFilter,
    WaitingLine,
    belongs_to_fan_out,
    competing_lines,
    needs_limit,
    solve,
)
from celery_throttle.observe.forecasts.states import read_states
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.lines import END, limit_names, waiting_queues
from celery_throttle.operations.plan import Plan

K = TypeVar("K")
T = TypeVar("T")

#: Lines by their keys.
Lines = dict[bytes, WaitingLine]


def forecast_limit(
    observer: Observer, ref: LimitRef, measured: float | None = None
) -> Plan[Forecast]:
    """Return the forecast of a limit: one key of it, or without a key all of them."""
    if measured is not None and not (isinstance(measured, (int, float)) and measured > 0):
        raise LimitValueError(
            f"measured is {shown(measured)}; allowed: tasks a second, above 0, or None"
        )
    yield from observer.check_known(ref)
    found = yield from forecast_each(observer, {ref: needs_limit(ref)}, measured={ref: measured})
    return found[ref]


def forecast_fan_out(observer: Observer, key: str, measured: float | None = None) -> Plan[Forecast]:
    """Return the forecast of a fan-out, by the key of its record."""
    filters = {key: belongs_to_fan_out(key)}
    found = yield from forecast_each(observer, filters, measured={key: measured})
    return found[key]


def forecast_task(
    observer: Observer, line: bytes, position: int, most: int, queues: Iterable[str]
) -> Plan[float | None]:
    """Return the seconds until the task at a position of a line starts.

    None if that is not known, or if more than ``most`` lines wait in these queues.
    """
    now, lines = yield from read_all_lines(observer, most, queues)
    if lines is None or line not in lines:
        return None
    own = lines[line] = lines[line]._replace(ranks=_first_tasks(lines[line].ranks, position))
    found = yield from forecast_lines(observer, lines, {line: lambda one: one is own}, now)
    return found[line].seconds


def forecast_each(
    observer: Observer,
    filters: Mapping[K, LineFilter],
    most: int = sys.maxsize,
    queues: Iterable[str] | None = None,
    measured: Mapping[K, float | None] | None = None,
) -> Plan[Mapping[K, Forecast]]:
    """Return a forecast for the lines of each filter; none if more than ``most`` lines wait.

    ``queues``: those with waiting tasks, if they are known; ``measured``: see :func:`solve`.
    """
    now, lines = yield from read_all_lines(observer, most, queues)
    if lines is None:
        return {}
    return (yield from forecast_lines(observer, lines, filters, now, measured))


def forecast_lines(
    observer: Observer,
    lines: Lines,
    filters: Mapping[K, LineFilter],
    now: int,
    measured: Mapping[K, float | None] | None = None,
) -> Plan[dict[K, Forecast]]:
    """Return a forecast for the lines of each filter, of all lines that wait."""
    competing = {one: competing_lines(lines.values(), filters[one]) for one in filters}
    refs = {ref for some in competing.values() for line in some for ref in line.costs}
    states = yield from read_states(observer, refs)
    capacities = {ref: states[ref].capacities(ref.name, now) for ref in states}
    return {
        one: solve(some, filters[one], capacities, now, (measured or {}).get(one))
        for one, some in competing.items()
    }


def read_all_lines(
    observer: Observer, most: int = sys.maxsize, queues: Iterable[str] | None = None
) -> Plan[tuple[int, Lines | None]]:
    """Return the server's time in microseconds, and all lines; None if there are more than that.

    ``queues``: those with waiting tasks, if they are known.
    """
    if not observer.has_server:
        return observer.local_time(), {}
    now, names = yield from limit_names(observer.keys, observer.now())
    if queues is None:
        queues, are_all = yield from waiting_queues(observer.keys, names, most)
        if not are_all:
            return now, None
    lines: Lines = {}
    for queue in queues:
        lines.update((yield from read_lines(observer, queue, most - len(lines))))
        if len(lines) > most:
            return now, None
    return now, lines


def read_lines(observer: Observer, queue: str, most: int = sys.maxsize) -> Plan[Lines]:
    """Return the lines of a queue; if there are more than ``most``, not all of them."""
    lines: Lines = {}  # a scan may return one twice
    names, cursor = list(observer.keys.queue(queue)), b"0"
    while len(lines) <= most:
        cursor, late, *rows = yield observer.call("read_lines", names, cursor)
        for line, fan_out, weight, requirements, ranks in rows:
            costs = {
                observer.keys.field_ref(field.decode()): float(cost)
                for _, field, cost in _tuples(requirements, 3)
            }
            by_rank = list(_tuples(ranks, 2))
            lines[line] = WaitingLine(fan_out.decode(), costs, by_rank, queue, late, weight)
        if cursor == END:
            break
    return lines


def _tuples(flat: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    return zip(*[iter(flat)] * size, strict=True)


def _first_tasks(ranks: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return the ranks of the first tasks of a line."""
    first = []
    for rank, tasks in ranks:
        first.append((rank, min(tasks, count)))
        count -= tasks
        if count <= 0:
            break
    return first
