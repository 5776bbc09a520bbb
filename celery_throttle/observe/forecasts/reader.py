"""Plans that read waiting tasks and the capacity of limits, and return forecasts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.lines import Lines, read_all_lines
from celery_throttle.observe.forecasts.solver import (
    Forecast,
    LineFilter,
    belongs_to_fan_out,
    competing_lines,
    needs_limit,
    solve,
)
from celery_throttle.observe.forecasts.states import read_states
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.plan import Plan

K = TypeVar("K")


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


def forecast_limits(
    observer: Observer, refs: Sequence[LimitRef], most: int, queues: Iterable[str] | None = None
) -> Plan[Mapping[LimitRef, Forecast]]:
    """Return the forecasts of some limits; see :func:`forecast_each`."""
    filters = {ref: needs_limit(ref) for ref in refs}
    return (yield from forecast_each(observer, filters, most, queues))


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
    found = yield from _forecast(observer, lines, {line: lambda one: one is own}, now, {})
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
    return (yield from _forecast(observer, lines, filters, now, measured or {}))


def _forecast(
    observer: Observer,
    lines: Lines,
    filters: Mapping[K, LineFilter],
    now: int,
    measured: Mapping[K, float | None],
) -> Plan[dict[K, Forecast]]:
    competing = {one: competing_lines(lines.values(), filters[one]) for one in filters}
    refs = {ref for some in competing.values() for line in some for ref in line.costs}
    states = yield from read_states(observer, refs)
    capacities = {ref: states[ref].capacities(ref.name, now) for ref in states}
    return {
        one: solve(some, filters[one], capacities, now, measured.get(one))
        for one, some in competing.items()
    }


def _first_tasks(ranks: Iterable[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return the ranks of the first tasks of a line."""
    first = []
    for rank, tasks in ranks:
        first.append((rank, min(tasks, count)))
        count -= tasks
        if count <= 0:
            break
    return first
