"""The plan that measures the tasks that wait at limits, by their queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.observer import Observer
from celery_throttle.operations.lines import END
from celery_throttle.operations.plan import Plan

#: Lines of each limit that are looked at.
MAX_LINES = 2000

#: How many limits one call measures.
_LIMITS_OF_A_CALL = 20


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


def measure_waiting(
    observer: Observer, refs: Sequence[LimitRef], most: int = MAX_LINES
) -> Plan[list[Waiting]]:
    """Measure what waits at each of some limits and keys; about so many lines of each at most."""
    keys, head = observer.keys, observer.keys.queue("").due
    measured = [_Measured(head) for _ in refs]
    names = [
        keys.waiting_list_index(ref.name) if ref.key is None else keys.waiting_lists(ref)
        for ref in refs
    ]
    cursors = [b"0" if ref.key is None else b"" for ref in refs]
    pending = [*range(len(refs))]
    while pending:
        some = pending[:_LIMITS_OF_A_CALL]
        rows = yield observer.call(
            "measure_waiting", [names[n] for n in some], *(cursors[n] for n in some)
        )
        going_on = []
        for number, (cursor, *row) in zip(some, rows, strict=False):  # the others come again
            measured[number].add(*row)
            cursors[number] = cursor
            if cursor != END and measured[number].lines < most:
                going_on.append(number)
        pending = [*going_on, *pending[len(rows) :]]
    return [
        Waiting(one.queues, cursor == END and not one.is_truncated)
        for one, cursor in zip(measured, cursors, strict=True)
    ]


class _Measured:
    """What was measured of one limit so far."""

    def __init__(self, head: str) -> None:
        self._head = head
        self.queues: dict[str, QueueWaiting] = {}
        self.lines = 0
        self.is_truncated = False

    def add(self, lines: int, is_truncated: int, found: Sequence[Any]) -> None:
        """Add the reply of one call."""
        self.lines += lines
        self.is_truncated = self.is_truncated or bool(is_truncated)
        for due, more, oldest_us, some in zip(*[iter(found)] * 4, strict=True):
            queue = due.decode().removeprefix(self._head)
            tasks, oldest, known = self.queues.get(queue, QueueWaiting(0, 0.0))
            oldest = max(oldest, oldest_us / MICROSECONDS)
            self.queues[queue] = QueueWaiting(tasks + more, oldest, known or tuple(some))
