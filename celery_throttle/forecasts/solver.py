"""Forecast: when what waits now will have been started, if nothing is added and nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import NamedTuple

from celery_throttle.forecasts.capacity import Supply
from celery_throttle.forecasts.fluid import Line
from celery_throttle.forecasts.groups import empty_times
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef

#: What ``bound_by`` says where limits have room and processes are what is missing.
WORKERS = "workers"

#: Microseconds for which nobody takes a task that could run: then workers are too few.
_LATE = 500_000

#: Microseconds for which tasks that could run are left where workers have begun far fewer of them
#: than limits allow: so many times fewer.
_BEHIND, _SLOWER = 30_000, 1.25

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the tasks that wait now will have been started.

    It goes by the limits in force, pauses, and all that waits for the same limits, as it is at this
    time: tasks that come later, and callers outside tasks, are not foreseen.

    Attributes:
        waiting: tasks that wait in lines.
        seconds: from now until the last of them starts. 0.0 if nothing waits; None if nobody knows,
            as it needs a slot ("10 at once"), or a limit that is paused until it is resumed. Where
            workers are too few it is what the limits allow: the earliest.
        at: the time of day of that, in UTC by the server's clock; None with ``seconds``.
        bound_by: the name of the limit that the last of them waits for; ``"workers"`` if the limits
            have room and no process takes what waits; None if nothing has to wait.
    """

    waiting: int
    seconds: float | None
    at: datetime | None
    bound_by: str | None


class Waiting(NamedTuple):
    """A line as ``read_lines.lua`` tells of it.

    Attributes:
        fan_out: the key of the fan-out whose tasks they are, or "".
        costs: of each limit and key, millionths of a unit a task.
        ranks: rank and number of tasks, the lowest first.
        queue: in which it is.
        late: microseconds for which tasks of that queue could have been taken.
        weight: its turns for one of others.
    """

    fan_out: str
    costs: Mapping[LimitRef, float]
    ranks: Sequence[tuple[int, int]]
    queue: str
    late: int
    weight: int = 1

    @property
    def tasks(self) -> int:
        """How many wait."""
        return sum(tasks for _, tasks in self.ranks)


#: Which lines a forecast is about.
Wanted = Callable[[Waiting], bool]

#: What each limit and key gives, by each of its limits; None for one that has slots.
Supplies = Mapping[LimitRef, Sequence[Supply | None]]


def needing(ref: LimitRef) -> Wanted:
    """Lines that need a limit: one key of it, or without a key all of them."""
    if ref.key is not None:
        return lambda line: ref in line.costs
    return lambda line: any(one.name == ref.name for one in line.costs)


def of_fan_out(key: str) -> Wanted:
    """Lines of a fan-out, by the key of its record."""
    return lambda line: line.fan_out == key


def entangled(lines: Collection[Waiting], wanted: Wanted) -> list[Waiting]:
    """The lines that are wanted, and all that compete with them, or with those that do."""
    by_ref: dict[LimitRef, list[Waiting]] = {}
    for line in lines:
        for ref in line.costs:
            by_ref.setdefault(ref, []).append(line)
    found = {id(line): line for line in lines if wanted(line)}
    queue = list(found.values())
    while queue:
        for ref in queue.pop().costs:
            new = {id(line): line for line in by_ref.pop(ref, ()) if id(line) not in found}
            found.update(new)
            queue += new.values()
    return list(found.values())


def foresee(
    lines: Sequence[Waiting],
    wanted: Wanted,
    supplies: Supplies,
    now: int,
    measured: float | None = None,
) -> Forecast:
    """The forecast.

    Args:
        lines: those that are :func:`entangled`.
        wanted: the ones that it is about.
        supplies: of all limits and keys that these need.
        now: the server's time, in microseconds.
        measured: tasks that started in a second lately, of those that are wanted. It counts where
            limits do not tell: they have slots, or there are too few workers.
    """
    own = [line for line in lines if wanted(line)]
    waiting = sum(line.tasks for line in own)
    if not waiting:
        return _told(0, 0.0, None, now)
    paused = next((ref.name for line in own for ref in line.costs if _stops(supplies[ref])), None)
    if paused is not None:
        return Forecast(waiting, None, None, paused)
    late = any(_is_late(line, supplies) for line in own)
    slots = next((ref.name for line in own for ref in line.costs if None in supplies[ref]), None)
    if slots is not None and not measured and not late:
        return Forecast(waiting, None, None, slots)
    seconds, bound = _last(lines, own, supplies)
    # Between two claims of workers that are too slow, what is due stays so for a while.
    behind = any(line.late > _BEHIND for line in own)
    if behind and is_slower(waiting, measured, seconds):
        late = True
    if slots is not None or late:
        by_workers = waiting / measured if measured else None
        if slots is not None and by_workers is None:
            return Forecast(waiting, None, None, WORKERS)
        if late or (by_workers or 0.0) > seconds:
            bound = WORKERS if late else slots
        seconds = max(seconds, by_workers or 0.0)
    return _told(waiting, seconds, bound, now)


def _stops(supplies: Sequence[Supply | None]) -> bool:
    """Whether nothing passes before somebody resumes the limit."""
    return any(supply is not None and supply.gives_nothing for supply in supplies)


def is_slower(waiting: int, measured: float | None, seconds: float) -> bool:
    """Whether tasks start so much slower than limits allow that it needs another reason."""
    return bool(measured) and waiting > _SLOWER * (measured or 0.0) * seconds


def _is_late(line: Waiting, supplies: Supplies) -> bool:
    """Whether nobody takes its tasks, or who takes some leaves more than a moment's worth.

    Each time that a worker takes what it has processes for, the rest is due anew.
    """
    if line.late > _LATE or not line.late or not line.costs:
        return line.late > _LATE
    return all(
        supply is not None
        and not supply.paused
        and supply.stored >= cost / MILLION + supply.rate * _LATE / MICROSECONDS
        for ref, cost in line.costs.items()
        for supply in supplies[ref]
    )


def _last(
    lines: Sequence[Waiting], own: Sequence[Waiting], supplies: Supplies
) -> tuple[float, str | None]:
    """Seconds until the last of some lines is empty, and which limit it waits for."""
    places: dict[LimitRef, range] = {}
    every: list[Supply] = []
    for ref, some in supplies.items():
        known = [supply for supply in some if supply is not None]
        places[ref] = range(len(every), len(every) + len(known))
        every += known
    parts = [(line, rank, tasks) for line in lines for rank, tasks in line.ranks]
    drained = empty_times([_line(*part, places) for part in parts], every)
    wanted = {id(line) for line in own}
    ends = [end for end, part in zip(drained, parts, strict=True) if id(part[0]) in wanted]
    last = max(ends, key=lambda end: end.seconds)
    return last.seconds, last.bound


def _line(line: Waiting, rank: int, tasks: int, places: Mapping[LimitRef, range]) -> Line:
    costs = ((place, cost / MILLION) for ref, cost in line.costs.items() for place in places[ref])
    return Line(tasks, tuple(costs), rank, line.weight, line.queue)


def _told(waiting: int, seconds: float, bound: str | None, now: int) -> Forecast:
    if not isfinite(seconds):
        return Forecast(waiting, None, None, bound)
    try:
        at = _EPOCH + timedelta(microseconds=now + round(seconds * MICROSECONDS))
    except OverflowError:  # in thousands of years
        at = None
    return Forecast(waiting, seconds, at, bound)
