"""Plans that read the status of limits: what is stored of them, and what waits there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from celery_throttle.forecasts.solver import Forecast
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Concurrency
from celery_throttle.observe.fleet import Fleet, FleetReader
from celery_throttle.observe.rules import RulesReader
from celery_throttle.observe.runnable import RunnableReader
from celery_throttle.observe.stored import NAMES_OF_A_CALL, StoredReader
from celery_throttle.observe.times import at_time
from celery_throttle.observe.values import LimitStatus, Status, Stranded, Usage
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Call, script

#: Forecasts and ages look at this many lines at most.
MAX_LINES = 2000

#: Seconds for which a limit must have had room until its tasks count as runnable.
_RUNNABLE_AFTER_SECONDS = 0.5

_END = b"0"


class QueueWaiting(NamedTuple):
    """The tasks of one queue that wait at a limit."""

    tasks: int
    oldest: float  #: seconds that the oldest of them has waited


class Waiting(NamedTuple):
    """The lines that wait at a limit."""

    lines: int
    is_truncated: bool  #: whether there were too many lines to look at each
    queues: dict[str, QueueWaiting]

    @property
    def oldest(self) -> float | None:
        """Seconds that the oldest task has waited; None if nothing waits."""
        return max((queue.oldest for queue in self.queues.values()), default=None)


@dataclass(frozen=True, slots=True)
class StatusReader(StoredReader, FleetReader, RulesReader, RunnableReader):
    """Reads the status of the limits of one prefix."""

    def of_all(self, after: str = "", most: int = 100) -> Plan[Status]:
        """Return the status of all limits, ``most`` at a time, with names behind ``after``."""
        names = yield from self.limit_names()
        page = [name for name in names if name > after][:most]
        status = yield from self.of_names(page)
        has_more = bool(page) and page[-1] != names[-1]
        return replace(status, next=page[-1]) if has_more else status

    def of_names(self, names: Sequence[str]) -> Plan[Status]:
        """Return the status of the limits with these names, in this order."""
        fleet = yield from self.fleet()
        found = yield from self.of_refs([LimitRef(name, None) for name in names], fleet)
        stranded = yield from self._stranded(fleet, found)
        limits = tuple(status for status, _ in found)
        rules = yield from self.rules_status()
        at, workers = at_time(fleet.now), fleet.workers
        return Status(at, limits, None, workers, stranded, rules, fleet.ungated)

    def of_refs(
        self, refs: Sequence[LimitRef], fleet: Fleet
    ) -> Plan[list[tuple[LimitStatus, Waiting]]]:
        """Return the status of some limits and keys, and the lines that wait there."""
        found = yield from self._read_with_pauses(refs)
        waiting = {}
        for status, ref in zip(found, refs, strict=True):
            waiting[ref] = yield from self._measure(ref, status.waiting)
        defined = [ref for ref, one in zip(refs, found, strict=True) if one.defined]
        usage = yield from self._usage(defined)
        queues = set(chain(*(one.queues for one in waiting.values())))
        overdue = yield from self.overdue(queues, _RUNNABLE_AFTER_SECONDS)
        runnable = overdue.count_runnable(queues)
        with_lines = [ref for ref in refs if waiting[ref].lines]
        forecasts: Mapping[LimitRef, Forecast] = {}
        if with_lines and not any(waiting[ref].is_truncated for ref in with_lines):
            all_queues = sorted(queues | fleet.consumed.keys())
            forecasts = yield from self.of_limits(with_lines, MAX_LINES, all_queues)
        statuses = []
        for status, ref in zip(found, refs, strict=True):
            about = replace(
                status,
                usage=usage.get(ref, ()),
                runnable=sum(
                    tasks
                    for other, tasks in runnable.items()
                    if other == ref or (ref.key is None and other.name == ref.name)
                ),
                oldest=waiting[ref].oldest,
                forecast=forecasts.get(ref),
            )
            statuses.append((about, waiting[ref]))
        return statuses

    def _measure(self, ref: LimitRef, waiting: int) -> Plan[Waiting]:
        """Measure the lines that wait at a limit, or at one key of it."""
        if not waiting:
            return Waiting(0, is_truncated=False, queues={})
        keys, by_key = self.keys, ref.key is not None
        name = keys.waiting_lists(ref) if by_key else keys.waiting_list_index(ref.name)
        lines, is_truncated = 0, False
        queues: dict[str, QueueWaiting] = {}
        cursor, head = b"" if by_key else b"0", keys.queue("").due
        while True:
            cursor, count, flag, found = yield Call(
                script("measure_waiting"), [name], [self.now(), cursor]
            )
            lines += count
            for due, tasks, oldest_us in zip(found[::3], found[1::3], found[2::3], strict=True):
                queue = due.decode().removeprefix(head)
                _add_tasks(queues, queue, QueueWaiting(tasks, oldest_us / MICROSECONDS))
            is_truncated = bool(flag) or (lines >= MAX_LINES and cursor != _END)
            if cursor == _END or lines >= MAX_LINES:
                return Waiting(lines, is_truncated, queues)

    def _usage(self, refs: Sequence[LimitRef]) -> Plan[dict[LimitRef, tuple[Usage, ...]]]:
        found: dict[LimitRef, tuple[Usage, ...]] = {}
        for start in range(0, len(refs), NAMES_OF_A_CALL):
            limits = yield from self._limits(refs[start : start + NAMES_OF_A_CALL])
            rows = yield from self._capacity_rows(list(limits))
            for ref, (_, *numbers) in zip(limits, rows, strict=True):
                found[ref] = tuple(
                    _read_usage(limit, *numbers[4 * n : 4 * n + 4])
                    for n, limit in enumerate(limits[ref])
                )
        return found

    def _stranded(
        self, fleet: Fleet, found: Sequence[tuple[LimitStatus, Waiting]]
    ) -> Plan[tuple[Stranded, ...]]:
        """Return the waiting tasks that no live worker can start."""
        yield from ()
        queues: dict[str, QueueWaiting] = {}
        stranded = []
        for status, waiting in found:
            for queue, more in waiting.queues.items():
                _add_tasks(queues, queue, more)
            if not status.defined and status.waiting:
                stranded.append(Stranded("", status.waiting, "limit", status.name))
        for queue, (tasks, oldest) in sorted(queues.items()):
            if not fleet.consumes(queue, oldest):
                stranded.append(Stranded(queue, tasks, "queue", queue))
        if fleet.quarantined:
            stranded.append(Stranded("", fleet.quarantined, "task", ""))
        return tuple(stranded)


def _add_tasks(queues: dict[str, QueueWaiting], queue: str, more: QueueWaiting) -> None:
    """Add waiting tasks of a queue to what is known of all queues."""
    tasks, oldest = queues.get(queue, (0, 0.0))
    queues[queue] = QueueWaiting(tasks + more.tasks, max(oldest, more.oldest))


def _read_usage(limit: Limit, amount: int, reset: int, _wait: int, share: int) -> Usage:
    left = amount / MILLION
    most = limit.rate.slots if isinstance(limit.rate, Concurrency) else limit.burst
    return Usage(str(limit), most - left, most, reset / MICROSECONDS, share / MILLION)
