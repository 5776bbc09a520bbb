"""Computes forecasts: when waiting tasks will have started, if nothing is added or changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from math import inf, isfinite
from typing import Literal, NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.forecasts.fluid import Capacity, Drained, FluidLine, drain_times
from celery_throttle.observe.observer import at_time_or_none
from celery_throttle.store.keys import FAN_OUT_NAME

#: What the start of the last task depends on, or why it is unknown.
Cause = Literal["limit", "workers", "pause", "processes", "slots", "lines"]

#: Processes are too few if tasks that could run are not claimed for this long.
_LATE_US = 500_000

#: Processes are also too few if tasks that could run are left for this long, while the limits allow
#: this many times the measured rate.
_BEHIND_US, _SLOWER_RATIO = 30_000, 1.25


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the tasks that wait now will have started.

    The forecast takes into account the limits in force, their pauses, and all tasks that wait for
    the same limits now. It does not include later tasks, or callers outside tasks.

    Attributes:
        waiting: The number of tasks that wait in lines; with the cause ``"lines"``, of those that
            were looked at.
        seconds: Seconds from now until the last of them starts; 0.0 if no task waits. None if it is
            unknown.
        at: The same as a time, in UTC by the server's clock. None if ``seconds`` is None, or if the
            time is thousands of years away.
        earliest: The time before which the last of them does not start, by the rates of the limits
            and the pauses that have an end. The same as ``at`` if that is known. None if it is
            now, or thousands of years away.
        unknown: The number of tasks of which the start is unknown.
        limited_by: The name of the limit for which the last task waits, or which makes its start
            unknown. None if no limit does.
        cause: What the start of the last task depends on, or why it is unknown. None: no task has
            to wait. ``"limit"``: the rate of the limit. ``"workers"``: no live worker consumes the
            queue of some tasks. ``"pause"``: some tasks need a limit or a key that is paused until
            it is resumed, or are of a paused fan-out. ``"processes"``: the limits have room, but no
            process takes the tasks. ``"slots"``: some tasks need a slot (``10 at once``), and
            nobody knows when one is released. With these two, ``seconds`` is computed from the
            measured rate of starts if there is one. ``"lines"``: more than 2,000 lines wait, and
            not all were looked at.
    """

    waiting: int
    seconds: float | None
    at: datetime | None
    earliest: datetime | None
    unknown: int
    limited_by: str | None
    cause: Cause | None


class WaitingLine(NamedTuple):
    """A line as ``read_lines.lua`` replies it."""

    fan_out: str  #: the key of the fan-out of its tasks, or ""
    costs: Mapping[LimitRef, float]  #: of each limit and key, in millionths of a unit per task
    ranks: Sequence[tuple[int, int]]  #: pairs of rank and number of tasks, the lowest rank first
    queue: str
    late: int  #: microseconds for which tasks of that queue could have been claimed
    is_consumed: bool = True  #: by a live worker
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
    *,
    are_all: bool = True,
) -> Forecast:
    """Compute the forecast of the matching ones of all :func:`competing_lines`.

    A limit without capacities is not defined, and stops no task.

    ``measured`` is the rate at which tasks of these lines started lately, per second. It counts if
    limits have slots, or there are too few processes. ``now`` is the server's time in microseconds.
    ``are_all``: whether no other lines wait.
    """
    own = [line for line in lines if matches(line)]
    waiting = sum(line.tasks for line in own)
    last = _last_line(lines, matches, capacities)
    blocks = _blocks(own, capacities, last.seconds, measured if are_all else None)
    if not are_all:
        blocks["lines", None] = 0
    seconds, limit = last.seconds, last.limit
    cause: Cause | None = "limit" if limit else None
    if blocks:
        cause, limit = next(iter(blocks))
    is_known = not blocks
    if measured and blocks and cause in ("processes", "slots"):
        by_processes, is_known = waiting / measured, True
        if cause == "slots" and by_processes <= seconds:
            cause, limit = "limit" if last.limit else None, last.limit
        seconds = max(seconds, by_processes)
    if limit == FAN_OUT_NAME:
        cause, limit = "pause", None
    at = at_time_or_none(now + seconds * MICROSECONDS)
    return Forecast(
        waiting=waiting,
        seconds=seconds if is_known else None,
        at=at if is_known else None,
        earliest=at if is_known or seconds else None,
        unknown=0 if is_known else sum(blocks.values()),
        limited_by=limit,
        cause=cause,
    )


#: Why the start of tasks is unknown, and the limit that makes it so.
_Block = tuple[Cause, str | None]


def _blocks(
    own: Sequence[WaitingLine], capacities: Capacities, seconds: float, measured: float | None
) -> dict[_Block, int]:
    """Return what makes the start of how many tasks unknown, the strongest cause first.

    ``seconds``: until the last line is empty, if nothing blocks any.
    """
    waiting = sum(line.tasks for line in own)
    # Processes that are too slow leave due tasks for a while between two claims.
    is_behind = is_slower(waiting, measured, seconds)
    found: dict[_Block, int] = {}
    for line in own:
        if block := _block(line, capacities, is_behind=is_behind):
            found[block] = found.get(block, 0) + line.tasks
    order = ("workers", "pause", "processes", "slots")
    return dict(sorted(found.items(), key=lambda item: order.index(item[0][0])))


def _block(line: WaitingLine, capacities: Capacities, *, is_behind: bool) -> _Block | None:
    if not line.is_consumed:
        return "workers", None
    refs = [ref for ref in line.costs if ref in capacities]
    for ref in refs:
        if any(one and one.rate == 0 for one in capacities[ref]):
            return "pause", ref.name
    if _is_late(line, capacities) or (is_behind and line.late > _BEHIND_US):
        return "processes", None
    slots = next((ref.name for ref in refs if None in capacities[ref]), None)
    return None if slots is None else ("slots", slots)


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


def start_times(
    lines: Sequence[WaitingLine],
    line: WaitingLine,
    positions: Sequence[int],
    drained: Sequence[Drained],
    capacities: Capacities,
) -> list[float | None]:
    """Return the seconds until tasks of a line start, by their positions; None if unknown.

    ``drained``: of all these lines, by :func:`drain_lines`.
    """
    if _block(line, capacities, is_behind=False):
        return [None] * len(positions)
    first = sum(len(one.ranks) for one in takewhile(lambda one: one is not line, lines))
    starts: list[float | None] = []
    for position in positions:
        before, seconds = 0, inf
        for (_, tasks), end in zip(line.ranks, drained[first:], strict=False):
            if position <= before + tasks:
                seconds = end.seconds_of(position - before, tasks)
                break
            before += tasks
        starts.append(seconds if isfinite(seconds) else None)
    return starts


def drain_lines(lines: Sequence[WaitingLine], capacities: Capacities) -> list[Drained]:
    """Return when the tasks of each rank of each line have started."""
    parts: list[FluidLine] = []
    for line in lines:
        costs = tuple(
            (capacity, cost / MILLION)
            for ref, cost in line.costs.items()
            for capacity in capacities.get(ref, ())
            if capacity is not None
        )
        parts += [
            FluidLine(tasks, costs, rank, line.weight, line.queue) for rank, tasks in line.ranks
        ]
    return drain_times(parts)


def _last_line(
    lines: Sequence[WaitingLine], matches: LineFilter, capacities: Capacities
) -> Drained:
    """Return when the last of the matching lines is empty that is empty at some time."""
    is_own = (matches(line) for line in lines for _ in line.ranks)
    ends = zip(drain_lines(lines, capacities), is_own, strict=True)
    own_ends = (end for end, own in ends if own and isfinite(end.seconds))
    return max(own_ends, key=lambda end: end.seconds, default=Drained(0.0, None))
