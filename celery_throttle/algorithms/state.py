"""The interface of every algorithm's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11


class Mark(NamedTuple):
    """Identifies a take, see :meth:`State.mark`; some algorithms need more than one number."""

    value: int
    more: int = 0


@dataclass(frozen=True, slots=True)
class State(ABC):
    """The state of one limit and key. Times are microseconds, amounts millionths of a unit."""

    since: int  #: when the definition came into force under which the state was written

    @classmethod
    @abstractmethod
    def empty(cls, limit: Limit, since: int) -> Self:
        """Return the state with nothing in use."""

    def matches(self, _limit: Limit) -> bool:
        """Whether the state was written with the numbers of a limit, ``since`` aside."""
        return True

    @abstractmethod
    def latest_time(self) -> int:
        """Return the latest time in the state; see :func:`is_ahead`."""

    @abstractmethod
    def rebase(self, limit: Limit, now: int) -> Self:
        """Return the state as if it had been written ``now``: the clock has been set back."""

    @abstractmethod
    def in_use(self, at: int) -> int:
        """Return the amount in use at a time, never too little, for another definition to adopt."""

    @abstractmethod
    def wait(self, limit: Limit, cost: int, now: int) -> int:
        """Return the microseconds until ``cost``, at most the burst, would pass; rounded up."""

    @abstractmethod
    def take(self, limit: Limit, cost: int, now: int, at: int) -> Self:
        """Return the state once ``cost`` is taken ``now`` for a start ``at``, allowed or not."""

    def fill(self, limit: Limit, amount: int, at: int) -> Self:
        """Return an empty state as if an amount had been taken at a time."""
        return self.take(limit, amount, at, at) if amount else self

    @abstractmethod
    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        """Return the amount that could pass now, and us until nothing is in use, rounded up."""

    def matters(self, limit: Limit, now: int) -> bool:
        """Whether the state differs from an empty one. The server keeps a state as long."""
        return self.remaining_and_reset(limit, now)[1] > 0

    @abstractmethod
    def mark(self) -> Mark:
        """Return what identifies the last take, for :meth:`settle`."""

    @abstractmethod
    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Self:
        """Return the state once the take of ``mark`` turns out to be ``actual``, not ``cost``.

        A refund is at most what is still in use of that take. A debt may exceed the burst.
        """


def free_amount(limit: Limit, in_use: int) -> int:
    """Return the amount of the burst that is not in use."""
    return max(0, limit.burst * MILLION - in_use)


def is_ahead(time: int, now: int) -> bool:
    """Whether a stored time is further ahead than any booking, so the clock has been set back."""
    return time > now + MAX_BOOKING_US


def ceil_div(dividend: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-dividend // divisor)
