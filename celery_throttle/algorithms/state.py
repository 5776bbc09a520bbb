"""What every algorithm's state can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import FARTHEST, Limit

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11


class Mark(NamedTuple):
    """Tells a take from others, see :meth:`State.mark`; some states need more than one number."""

    value: int
    more: int = 0


@dataclass(frozen=True, slots=True)
class State(ABC):
    """What one limit and key remembers.

    All times are microseconds, all amounts millionths of a unit.

    Attributes:
        since: since when the definition is in force under which this was written.
    """

    since: int

    @classmethod
    @abstractmethod
    def empty(cls, limit: Limit, since: int) -> Self:
        """Nothing in use."""

    def is_of(self, _limit: Limit) -> bool:
        """Whether this was written with the numbers of a limit; ``since`` is compared elsewhere."""
        return True

    @abstractmethod
    def written(self) -> int:
        """The latest time this knows of: more than ``FARTHEST`` ahead if the clock stepped back."""

    @abstractmethod
    def moved_back(self, limit: Limit, now: int) -> Self:
        """The same in use, as if it had been written at ``now``: the clock has stepped back."""

    @abstractmethod
    def in_use(self, at: int) -> int:
        """The amount in use at a time, for another definition to go on with; never too little."""

    @abstractmethod
    def wait(self, limit: Limit, cost: int, now: int) -> int:
        """Microseconds until ``cost``, at most the burst, would pass; rounded up."""

    @abstractmethod
    def take(self, limit: Limit, cost: int, now: int, at: int) -> Self:
        """The state once ``cost`` is taken at ``now`` for a start at ``at``, whatever the limit."""

    def fill(self, limit: Limit, amount: int, at: int) -> Self:
        """Of nothing in use, the state as if an amount had been taken at a time."""
        return self.take(limit, amount, at, at) if amount else self

    @abstractmethod
    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        """The amount that could pass now, and microseconds until nothing is in use, rounded up."""

    @abstractmethod
    def mark(self) -> Mark:
        """What tells the last take from others, for :meth:`settle`."""

    @abstractmethod
    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Self:
        """The state once it is known that the take of ``mark`` was worth ``actual``, not ``cost``.

        What was refunded is never more than what is left of that take; what is owed may go beyond
        the burst.
        """


def free(limit: Limit, in_use: int) -> int:
    """The amount left of the burst."""
    return max(0, limit.burst * MILLION - in_use)


def is_ahead(time: int, now: int) -> bool:
    """Whether a time that was written lies farther ahead than anything is booked."""
    return time > now + FARTHEST


def divided_up(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)
