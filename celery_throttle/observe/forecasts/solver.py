"""Computes forecasts: when waiting tasks will have started, if nothing is added or changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.fluid import Capacity, Drained, FluidLine, drain_times
from celery_throttle.observe.observer import at_time_or_none

#: ``limited_by`` of a forecast if limits have room, and processes are missing.
WORKERS = "workers"

#: Workers are too few if tasks that could run are not claimed for this long.
_LATE_US = 500_000

#: Workers are also too few if tasks that could run are left for this long, while the limits allow
#: this many times the measured rate.
_BEHIND_US, _SLOWER_RATIO = 30_000, 1.25


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the tasks that wait now will have started.

    The forecast takes into account the limits in force, their pauses, and all tasks that wait for
    the same limits now. It does not include later tasks, or callers outside tasks.

    Attributes:
        waiting: The number of tasks that wait in lines.
        seconds: Seconds from now until the last of them starts; 0.0 if no task waits. If there are
            too few workers, it is the earliest time that the limits allow. None if it is unknown: a
            task needs a slot (``10 at once``), or a limit that is paused until it is resumed.
        at: The same as a time, in UTC by the server's clock. None if ``seconds`` is None, or if the
            time is thousands of years away.
        limited_by: The name of the limit for which the last task waits. ``"workers"`` if the limits
            have room but no process takes the tasks. None if no task has to wait.
    """

    waiting: int
    seconds: float | None
    at: datetime | None
    limited_by: str | None


class WaitingLine(NamedTuple):
    """A line as ``read_lines.lua`` replies it."""

    fan_out: str  #: the key of the fan-out of its tasks, or ""
    costs: Mapping[LimitRef, float]  #: of each limit and key, in millionths of a unit per task
    ranks: Sequence[tuple[int, int]]  #: pairs of rank and number of tasks, the lowest rank first
    queue: str
    late: int  #: microseconds for which tasks of that queue could have been claimed
    weight: int = 1

    @property
    def tasks(self) -> int:
        """How many tasks wait."""
        return sum(tasks for _, tasks in self.ranks)


#: Selects the lines that a forecast is about.
LineFilter = Callable[[WaitingLine], bool]

#: For each limit and key that is defined, the capacity of each of its clauses; None for slots.
Capacities = Mapping[LimitRef, Sequence[Capacity | None]]


def needs_limit(ref: LimitRef) -> LineFilter:
    """Select the lines that need a limit: one key of it, or without a key all of them."""
    if ref.key is not None:
        return lambda line: ref in line.costs
    return lambda line: any(one.name == ref.name for one in line.costs)


def belongs_to_fan_out(key: str) -> LineFilter:
    """Select the lines of a fan-out, by the key of its record."""
    return lambda line: line.fan_out == key


def competing_lines(lines: Collection[WaitingLine], matches: LineFilter) -> list[WaitingLine]:
    """Return the matching lines and all that compete with them, directly or through others."""
    by_ref: dict[LimitRef, list[WaitingLine]] = {}
    for line in lines:
        for ref in line.costs:
            by_ref.setdefault(ref, []).append(line)
    found = {id(line): line for line in lines if matches(line)}
    queue = list(found.values())
    while queue:
        for ref in queue.pop().costs:
            new = {id(line): line for line in by_ref.pop(ref, ()) if id(line) not in found}
            found.update(new)
            queue += new.values()
    return list(found.values())


def solve(
    lines: Sequence[WaitingLine],
    matches: LineFilter,
    capacities: Capacities,
    now: int,
    measured: float | None = None,
) -> Forecast:
    """Compute the forecast of the matching ones of all :func:`competing_lines`.

    A limit without capacities is not defined, and stops no task.

    ``measured`` is the rate at which tasks of these lines started lately, per second. It counts if
    limits have slots, or there are too few workers. ``now`` is the server's time in microseconds.
    """
    own = [line for line in lines if matches(line)]
    waiting = sum(line.tasks for line in own)
    if not waiting:
        return _forecast(0, 0.0, None, now)
    refs = dict.fromkeys(ref for line in own for ref in line.costs if ref in capacities)
    for ref in refs:  # nothing passes until it is resumed
        if any(one and one.rate == 0 for one in capacities[ref]):
            return Forecast(waiting, None, None, ref.name)
    slots = next((ref.name for ref in refs if None in capacities[ref]), None)
    late = any(_is_late(line, capacities) for line in own)
    if slots is not None and not measured:
        return Forecast(waiting, None, None, WORKERS if late else slots)
    last = _last_line(lines, matches, capacities)
    seconds, limit = last.seconds, last.limit
    # Workers that are too slow leave due tasks for a while between two claims.
    if any(line.late > _BEHIND_US for line in own) and is_slower(waiting, measured, seconds):
        late = True
    by_workers = waiting / measured if measured and (late or slots is not None) else 0.0
    if late:
        limit = WORKERS
    elif by_workers > seconds:
        limit = slots
    return _forecast(waiting, max(seconds, by_workers), limit, now)


def is_slower(waiting: int, measured: float | None, seconds: float) -> bool:
    """Whether tasks start much slower than limits allow, so that another cause is likely."""
    return bool(measured) and waiting > _SLOWER_RATIO * (measured or 0.0) * seconds


def _is_late(line: WaitingLine, capacities: Capacities) -> bool:
    """Whether no worker claims its tasks, or workers leave more than ``_LATE_US`` worth of units.

    Each claim of a worker resets ``late``, also if it leaves tasks for which it has no process.
    """
    refs = [ref for ref in line.costs if ref in capacities]
    if line.late > _LATE_US or not line.late or not refs:
        return line.late > _LATE_US
    return all(
        capacity is not None
        and not capacity.paused
        and capacity.stored >= line.costs[ref] / MILLION + capacity.rate * _LATE_US / MICROSECONDS
        for ref in refs
        for capacity in capacities[ref]
    )


def _last_line(
    lines: Sequence[WaitingLine], matches: LineFilter, capacities: Capacities
) -> Drained:
    """Return when the last of the matching lines is empty."""
    parts: list[FluidLine] = []
    is_own: list[bool] = []
    for line in lines:
        costs = tuple(
            (capacity, cost / MILLION)
            for ref, cost in line.costs.items()
            for capacity in capacities.get(ref, ())
            if capacity is not None
        )
        for rank, tasks in line.ranks:
            parts.append(FluidLine(tasks, costs, rank, line.weight, line.queue))
            is_own.append(matches(line))
    ends = zip(drain_times(parts), is_own, strict=True)
    return max((end for end, own in ends if own), key=lambda end: end.seconds)


def _forecast(waiting: int, seconds: float, limit: str | None, now: int) -> Forecast:
    if not isfinite(seconds):
        return Forecast(waiting, None, None, limit)
    return Forecast(waiting, seconds, at_time_or_none(now + seconds * MICROSECONDS), limit)
