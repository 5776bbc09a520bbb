"""Tasks and their messages, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from celery_throttle.limits.key import ItemLike, LimitRef, parse_item


@cache
def _refs_of(limits: tuple[ItemLike, ...]) -> list[LimitRef]:
    return [parse_item(limit) for limit in limits]


class Kind(NamedTuple):
    """What a task is like; see :meth:`tests.protocol.Protocol.park`.

    Attributes:
        expires: microseconds after it was sent; 0 for never.
        times: how many such tasks the worker has at hand.
        late: whether it is acknowledged at its end, not at its start.
    """

    limits: tuple[ItemLike, ...]
    cost: float = 1
    rank: int = 3
    queue: str = "p"
    expires: int = 0
    max_wait: int = -1
    times: int = 1
    late: bool = True

    @property
    def refs(self) -> list[LimitRef]:
        return _refs_of(self.limits)


@dataclass(eq=False)
class Task:
    """One task.

    Attributes:
        expires: when, by the clock; 0 for never.
        starts: how often it was started, ``allowed`` times at most: once more for each retry, and
            for each time that nobody could know whether it had been.
    """

    id: str
    kind: Kind
    expires: int
    starts: int = 0
    allowed: int = 1
    done: bool = False
    revoked: bool = False

    def start(self) -> None:
        self.starts += 1
        assert self.starts <= self.allowed, f"task {self.id} was started {self.starts} times"


class Message(NamedTuple):
    """What the broker brings: one for each attempt at a task."""

    task: Task
    attempt: int

    @property
    def identity(self) -> str:
        return f"{self.task.id} {self.attempt} 0"

    @property
    def packed(self) -> bytes:
        return f"{self.task.id} {self.attempt}".encode()


@dataclass(eq=False)
class Waiting:
    """A message in a line, or claimed from it.

    Attributes:
        number: counts those that joined any line.
        units: its time as scores have it, see ``line_data.lua``.
        returned: whether it came back to its line.
    """

    message: Message
    line: str
    number: int
    units: int
    returned: bool = False

    def is_before(self, other: Waiting) -> bool:
        """Whether it must be served before another of its line."""
        rank, other_rank = self.message.task.kind.rank, other.message.task.kind.rank
        if rank != other_rank:
            return rank < other_rank
        # To a line from which it is away, one may join that is as old by a clock that did not move
        # on; with those that joined at the same moment counted one by one.
        tied = self.returned and self.units + 16 >= other.units
        return self.number < other.number and not tied
