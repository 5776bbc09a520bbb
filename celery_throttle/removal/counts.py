"""The numbers of tasks that a removal would take out of lines, and that it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The tasks that wait for a limit now.

    Attributes:
        waiting: tasks in lines, which a removal takes out of them.
        claimed: tasks that workers have claimed, which a removal leaves alone: they run, or wait
            again once the lease of a dead worker has run out.
        elsewhere: tasks in lines of another broker's queues, which a removal leaves alone.
        queues: the waiting tasks of each queue.
    """

    waiting: int
    claimed: int
    elsewhere: int
    queues: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """The tasks that a removal took out of lines, and that it left alone.

    Attributes:
        removed: tasks that left their lines.
        failed: tasks that are back in their lines, as their messages cannot be sent.
        claimed: tasks that were claimed when it ended; see :class:`WaitingCount`.
        elsewhere: tasks in lines of another broker's queues when it began.
    """

    removed: int
    failed: int
    claimed: int
    elsewhere: int
