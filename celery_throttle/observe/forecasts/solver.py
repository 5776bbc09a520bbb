"""Computes forecasts: when waiting tasks will have started, if nothing is added or changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.capacity import Capacity
from celery_throttle.observe.forecasts.fluid import FluidLine
from celery_throttle.observe.forecasts.merge import drain_times

#: ``limited_by`` of a forecast if limits have room, and processes are missing.
WORKERS = "workers"

#: Workers are too few if tasks that could run are not claimed for this long.
_LATE_US = 500_000

#: Workers are also too few if tasks that could run are left for this long, while the limits allow
#: this many times the measured rate.
_BEHIND_US, _SLOWER_RATIO = 30_000, 1.25

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


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

    def without_unknown(self, known: Container[LimitRef]) -> WaitingLine:
        """Return the line without the limits that are not defined."""
        return self._replace(costs={ref: self.costs[ref] for ref in self.costs if ref in known})


#: Selects the lines that a forecast is about.
LineFilter = Callable[[WaitingLine], bool]

#: For each limit and key, the capacity of each of its limits; None for slots.
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
    known = [(line.without_unknown(capacities), matches(line)) for line in lines]
    own = [line for line, is_own in known if is_own]
    waiting = sum(line.tasks for line in own)
    if not waiting:
        return _forecast(0, 0.0, None, now)
    refs = dict.fromkeys(ref for line in own for ref in line.costs)
    # Nothing passes until it is resumed.
    closed = [ref for ref in refs if any(one and one.rate == 0 for one in capacities[ref])]
    if closed:
        return Forecast(waiting, None, None, closed[0].name)
    late = any(_is_late(line, capacities) for line in own)
    slots = next((ref.name for ref in refs if None in capacities[ref]), None)
    if slots is not None and not measured and not late:
        return Forecast(waiting, None, None, slots)
    seconds, limit = _last_line([line for line, _ in known], own, capacities)
    # Workers that are too slow leave due tasks for a while between two claims.
    behind = any(line.late > _BEHIND_US for line in own)
    if behind and is_slower(waiting, measured, seconds):
        late = True
    if slots is not None or late:
        by_workers = waiting / measured if measured else None
        if slots is not None and by_workers is None:
            return Forecast(waiting, None, None, WORKERS)
        if late or (by_workers or 0.0) > seconds:
            limit = WORKERS if late else slots
        seconds = max(seconds, by_workers or 0.0)
    return _forecast(waiting, seconds, limit, now)


def is_slower(waiting: int, measured: float | None, seconds: float) -> bool:
    """Whether tasks start much slower than limits allow, so that another cause is likely."""
    return bool(measured) and waiting > _SLOWER_RATIO * (measured or 0.0) * seconds


def _is_late(line: WaitingLine, capacities: Capacities) -> bool:
    """Whether no worker claims its tasks, or workers leave more than ``_LATE_US`` worth of units.

    Each claim of a worker resets ``late``, also if it leaves tasks for which it has no process.
    """
    if line.late > _LATE_US or not line.late or not line.costs:
        return line.late > _LATE_US
    return all(
        capacity is not None
        and not capacity.paused
        and capacity.stored >= cost / MILLION + capacity.rate * _LATE_US / MICROSECONDS
        for ref, cost in line.costs.items()
        for capacity in capacities[ref]
    )


def _last_line(
    lines: Sequence[WaitingLine], own: Sequence[WaitingLine], capacities: Capacities
) -> tuple[float, str | None]:
    """Return seconds until the last of some lines is empty, and the limit that it waits for."""
    indexes: dict[LimitRef, range] = {}
    every: list[Capacity] = []
    for ref, some in capacities.items():
        known = [capacity for capacity in some if capacity is not None]
        indexes[ref] = range(len(every), len(every) + len(known))
        every += known
    parts = [(line, rank, tasks) for line in lines for rank, tasks in line.ranks]
    drained = drain_times([_line(*part, indexes) for part in parts], every)
    own_ids = {id(line) for line in own}
    ends = [end for end, part in zip(drained, parts, strict=True) if id(part[0]) in own_ids]
    last = max(ends, key=lambda end: end.seconds)
    return last.seconds, last.limit


def _line(line: WaitingLine, rank: int, tasks: int, indexes: Mapping[LimitRef, range]) -> FluidLine:
    costs = ((index, cost / MILLION) for ref, cost in line.costs.items() for index in indexes[ref])
    return FluidLine(tasks, tuple(costs), rank, line.weight, line.queue)


def _forecast(waiting: int, seconds: float, limit: str | None, now: int) -> Forecast:
    if not isfinite(seconds):
        return Forecast(waiting, None, None, limit)
    try:
        at = _EPOCH + timedelta(microseconds=now + round(seconds * MICROSECONDS))
    except OverflowError:  # in thousands of years
        at = None
    return Forecast(waiting, seconds, at, limit)
