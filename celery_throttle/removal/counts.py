"""The numbers of tasks that a removal would take out of lines, and that it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """The tasks that wait for a limit now. ``throttle.count_waiting()`` returns it.

    Attributes:
        waiting: Tasks in lines. A removal takes them out of their lines.
        claimed: Tasks that workers have claimed. A removal does not take them. They run, or wait
            again if their worker dies and its lease expires.
        elsewhere: Tasks in lines of another broker's queues. A removal does not take them.
        queues: The number of waiting tasks of each queue, by its name.
    """

    waiting: int
    claimed: int
    elsewhere: int
    queues: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of a removal. ``drain()``, ``move()`` and ``drop()`` return it.

    Attributes:
        removed: Tasks that left their lines.
        failed: Tasks that are back in their lines, because their messages cannot be read or sent.
        claimed: Tasks that were claimed when the removal ended; see :class:`WaitingCount`.
        elsewhere: Tasks in lines of another broker's queues when the removal began.
    """

    removed: int
    failed: int
    claimed: int
    elsewhere: int
