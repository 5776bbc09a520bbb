"""Algorithms that drain: GCRA, token bucket and leaky bucket are one rule, kept in three forms.

Their emission interval is p/q microseconds a unit, and amounts are counted in q-ths of a
microsecond ("ticks"; see :attr:`celery_throttle.limits.limit.Limit.ticks`), so that no rate is ever
rounded. What is in use drains by q ticks a microsecond. A cost is rounded up to a tick. Twin:
``meters.lua``.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import insort
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.algorithms.state import Mark, State, divided_up
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import FARTHEST, Limit
from celery_throttle.limits.rate import MAX_EXACT

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

# How many refunds are told apart; beyond that the oldest count as one.
REFUNDS = 16


class Busy(NamedTuple):
    """A time in which there was always something in use.

    Attributes:
        began: when.
        refunds: what was refunded since, as microseconds to drain: the end of the take (see
            :meth:`Meter.mark`) and how much. In the order of the ends.
    """

    began: int
    refunds: tuple[tuple[int, int], ...] = ()

    def refunded(self, end: int, amount: int) -> Busy:
        """The same with one refund more."""
        found = list(self.refunds)
        if amount:
            insort(found, (end, amount), key=itemgetter(0))
        if len(found) > REFUNDS:
            # As if both were of the earlier take: of those between there is less left, never more.
            (first, one), (_, other), *rest = found
            found = [(first, one + other), *rest]
        return Busy(self.began, tuple(found))


@dataclass(frozen=True, slots=True)
class Meter(State):
    """What drains.

    Attributes:
        at: when this was written: the start of the last take.
        p: ticks a unit, when this was written; ``q``: ticks a microsecond.
        busy: the time it was in.
    """

    at: int
    p: int
    q: int
    busy: Busy

    @classmethod
    @abstractmethod
    def keep(cls, limit: Limit, since: int, used: int, at: int, busy: Busy) -> Self:
        """What to keep when ``used`` ticks are in use at the time ``at``."""

    @abstractmethod
    def used_then(self) -> int:
        """The ticks in use when this was written."""

    def used(self, now: int) -> int:
        """The ticks in use; before ``at`` those that will be, and what drains until then."""
        return max(0, self.used_then() - (now - self.at) * self.q)

    @classmethod
    def empty(cls, limit: Limit, since: int) -> Self:
        return cls.keep(limit, since, 0, 0, Busy(0))

    def is_of(self, limit: Limit) -> bool:
        return (self.p, self.q) == limit.ticks

    def written(self) -> int:
        return self.at

    def moved_back(self, limit: Limit, now: int) -> Self:
        # With another beginning: nothing is refunded of what was taken before.
        return self.keep(limit, self.since, self.used_then(), now, Busy(now))

    def in_use(self, at: int) -> int:
        return divided_up(self.used(max(at, self.at - FARTHEST)) * MILLION, self.p)

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        p, q = limit.ticks
        over = self.used(now) + _ticks(limit, cost) - limit.burst * p
        return max(0, divided_up(over, q))

    def take(self, limit: Limit, cost: int, now: int, at: int) -> Self:
        used = self.used(max(at, now)) + _ticks(limit, cost)
        return self.keep(limit, self.since, used, at, self._busy(now))

    def fill(self, limit: Limit, amount: int, at: int) -> Self:
        return self.keep(limit, self.since, _ticks(limit, amount), at, Busy(at))

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        p, q = limit.ticks
        used = self.used(now)
        return max(0, limit.burst * p - used) * MILLION // p, divided_up(used, q)

    def mark(self) -> Mark:
        """The end of the take: microseconds to drain from the beginning on, refunded or not."""
        began, refunds = self.busy
        refunded = sum(amount for _, amount in refunds)
        return Mark(self.at - began + self.used_then() // self.q + refunded, began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Self:
        """Units drain in the order in which they came: of a take there is left until its end.

        What was refunded of takes before it has brought that end forward.
        """
        p, q = limit.ticks
        used, busy = self.used(now), self._busy(now)
        if actual < cost:
            end = mark.value - sum(amount for other, amount in busy.refunds if other <= mark.value)
            rest = max(0, busy.began + end - now) * q if mark.more == busy.began else 0
            refund = min(_ticks(limit, cost) - _ticks(limit, actual), rest, used)
            busy = busy.refunded(mark.value, divided_up(refund, q))
            used -= refund
        else:
            owed = _ticks(limit, min(actual - cost, MAX_EXACT // p * MILLION))
            used = min(used + owed, max(used, MAX_EXACT))
        return self.keep(limit, self.since, used, now, busy)

    def _busy(self, now: int) -> Busy:
        return self.busy if self.used(now) else Busy(now)


@dataclass(frozen=True, slots=True)
class Gcra(Meter):
    """The generic cell rate algorithm, in its virtual scheduling form (ITU-T I.371, annex A).

    Attributes:
        tat: The theoretical arrival time, in microseconds: when nothing is in use any more.
        ticks: What comes on top of it, less than a microsecond.
    """

    tat: int
    ticks: int

    @classmethod
    def keep(cls, limit: Limit, since: int, used: int, at: int, busy: Busy) -> Self:
        p, q = limit.ticks
        microseconds, ticks = divmod(used, q)
        return cls(since, at, p, q, busy, at + microseconds, ticks)

    def used_then(self) -> int:
        return (self.tat - self.at) * self.q + self.ticks


@dataclass(frozen=True, slots=True)
class TokenBucket(Meter):
    """The token bucket with lazy refill: tokens are added up when somebody looks, not by a timer.

    Attributes:
        tokens: What was left, in ticks; negative when slots were booked ahead, or units are owed.
        burst: The capacity in units, when this was written.
    """

    tokens: int
    burst: int

    @classmethod
    def keep(cls, limit: Limit, since: int, used: int, at: int, busy: Busy) -> Self:
        p, q = limit.ticks
        return cls(since, at, p, q, busy, limit.burst * p - used, limit.burst)

    def used_then(self) -> int:
        return self.burst * self.p - self.tokens


@dataclass(frozen=True, slots=True)
class LeakyBucket(Meter):
    """The leaky bucket as a meter: what is poured in leaks at a constant rate (Turner, 1986).

    Attributes:
        level: What was in the bucket, in ticks.
    """

    level: int

    @classmethod
    def keep(cls, limit: Limit, since: int, used: int, at: int, busy: Busy) -> Self:
        return cls(since, at, *limit.ticks, busy, used)

    def used_then(self) -> int:
        return self.level


@dataclass(frozen=True, slots=True)
class LeakyQueue(LeakyBucket):
    """The leaky bucket as a queue: what is poured in starts when all before it has leaked."""

    def delay(self, now: int) -> int:
        """Microseconds from ``now`` until what is taken next may start, rounded up."""
        return divided_up(self.used(now), self.q)


def _ticks(limit: Limit, cost: int) -> int:
    return divided_up(cost * limit.ticks[0], MILLION)
