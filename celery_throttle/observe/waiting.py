"""The plan that measures the tasks that wait at a limit, by their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan

#: Lines that are looked at.
MAX_LINES = 2000


class QueueWaiting(NamedTuple):
    """The tasks of one queue that wait at a limit."""

    tasks: int
    oldest: float  #: seconds that the oldest of them has waited
    lines: tuple[bytes, ...] = ()  #: the keys of up to 20 of their lines


@dataclass(frozen=True, slots=True)
class Waiting:
    """The tasks that wait at a limit."""

    queues: dict[str, QueueWaiting]
    is_complete: bool  #: whether each line was looked at: there may be too many


def measure_waiting(observer: Observer, ref: LimitRef, most: int = MAX_LINES) -> Plan[Waiting]:
    """Measure what waits at a limit, or at one key of it; about so many lines at most."""
    queues: dict[str, QueueWaiting] = {}
    keys, by_key = observer.keys, ref.key is not None
    name = keys.waiting_lists(ref) if by_key else keys.waiting_list_index(ref.name)
    cursor, count, head = b"" if by_key else b"0", 0, keys.queue("").due
    while True:
        cursor, lines, is_truncated, found = yield observer.call("measure_waiting", [name], cursor)
        count += lines
        for due, more, oldest_us, some in zip(*[iter(found)] * 4, strict=True):
            queue = due.decode().removeprefix(head)
            tasks, oldest, known = queues.get(queue, QueueWaiting(0, 0.0))
            oldest = max(oldest, oldest_us / MICROSECONDS)
            queues[queue] = QueueWaiting(tasks + more, oldest, known or tuple(some))
        if cursor == END or count >= most:
            return Waiting(queues, cursor == END and not is_truncated)
