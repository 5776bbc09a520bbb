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
from celery_throttle.store.keys import Keys

#: Lines of each limit that are looked at.
MAX_LINES = 2000

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
    measured = [_Measured(observer.keys, ref) for ref in refs]
    pending = measured
    while pending:
        some = pending[:_LIMITS_OF_A_CALL]
        rows = yield observer.call(
            "measure_waiting", [one.key for one in some], *(one.cursor for one in some)
        )
        for one, row in zip(some, rows, strict=False):  # the others come again
            one.add(*row)
        going_on = [one for one in some[: len(rows)] if one.cursor != END and one.lines < most]
        pending = [*going_on, *pending[len(rows) :]]
    return [Waiting(one.queues, one.cursor == END and not one.is_truncated) for one in measured]


class _Measured:
    """What was measured of one limit so far, and where the next call goes on."""

    def __init__(self, keys: Keys, ref: LimitRef) -> None:
        by_key = ref.key is not None
        self.key = keys.waiting_lists(ref) if by_key else keys.waiting_list_index(ref.name)
        self.cursor = b"" if by_key else b"0"
        self.queues: dict[str, QueueWaiting] = {}
        self.lines = 0
        self.is_truncated = False
        self._head = keys.queue("").due

    def add(self, cursor: bytes, lines: int, is_truncated: int, found: Sequence[Any]) -> None:
        """Add the reply of one call."""
        self.cursor = cursor
        self.lines += lines
        self.is_truncated = self.is_truncated or bool(is_truncated)
        for due, more, oldest_us, some in zip(*[iter(found)] * 4, strict=True):
            queue = due.decode().removeprefix(self._head)
            tasks, oldest, known = self.queues.get(queue, QueueWaiting(0, 0.0))
            oldest = max(oldest, oldest_us / MICROSECONDS)
            self.queues[queue] = QueueWaiting(tasks + more, oldest, known or tuple(some))
