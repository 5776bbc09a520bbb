"""The numbers of tasks that a removal would take out of lines, and that it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The tasks that wait for a limit now; the result of ``throttle.count_waiting()``.

    Attributes:
        waiting: Tasks in lines; a removal takes them out of their lines.
        claimed: Tasks that workers have claimed; a removal leaves them alone. They run, or wait
            again once the lease of a dead worker has run out.
        elsewhere: Tasks in lines of another broker's queues; a removal leaves them alone.
        queues: The number of waiting tasks of each queue, by its name.
    """

    waiting: int
    claimed: int
    elsewhere: int
    queues: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """What a removal did; the result of ``throttle.drain()``, ``move()`` and ``drop()``.

    Attributes:
        removed: Tasks that left their lines.
        failed: Tasks that are back in their lines, as their messages cannot be read or sent.
        claimed: Tasks that were claimed when it ended; see :class:`WaitingCount`.
        elsewhere: Tasks in lines of another broker's queues when it began.
    """

    removed: int
    failed: int
    claimed: int
    elsewhere: int
