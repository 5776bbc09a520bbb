"""Algorithms that drain: GCRA, token bucket and leaky bucket are three spellings of one rule.

Units in use drain at the rate of the limit. The emission interval is p/q microseconds a unit, and
amounts are counted in ticks, q-ths of a microsecond (see
:attr:`celery_throttle.limits.limit.Limit.ticks`), so that no rate is ever rounded. Units in use
drain by q ticks a microsecond. A cost is rounded up to a tick. Twin: ``meters.lua``, which stores
the ticks in use in three forms: as a theoretical arrival time, as tokens left, or as a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.algorithms.state import Mark, State, ceil_div
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MAX_EXACT
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

#: Runs of refunds that are kept apart; beyond that the two oldest are merged.
MAX_REFUNDS = 10


class Refund(NamedTuple):
    """What was refunded of a run of takes, all of which are settled."""

    start: int  #: the end of the take before them, see :meth:`State.mark`
    end: int  #: the end of the last of them
    amount: int


class BusyPeriod(NamedTuple):
    """A period in which there were always units in use.

    All numbers of its refunds are microseconds to drain, or those of an adaptive rate ticks.
    """

    began: int
    refunds: tuple[Refund, ...] = ()  #: ordered by start

    def refunded(self, mark: int | None = None) -> int:
        """Return what was refunded of the takes up to a mark; None: of all."""
        return sum(one.amount for one in self.refunds if mark is None or one.start < mark)

    def add_refund(self, added: Refund) -> BusyPeriod:
        """Return the period with one more refund.

        Refunds with no take between them become one, as if both were of the earlier take. For the
        takes between two refunds that are merged, less could be refunded, never more.
        """
        if not added.amount:
            return self
        refunds: list[Refund] = []
        for one in sorted((*self.refunds, added), key=itemgetter(0)):
            if refunds and one.start <= refunds[-1].end:
                refunds[-1] = _merge(refunds[-1], one)
            else:
                refunds.append(one)
        if len(refunds) > MAX_REFUNDS:
            refunds[:2] = [_merge(*refunds[:2])]
        return BusyPeriod(self.began, tuple(refunds))


def _merge(one: Refund, other: Refund) -> Refund:
    return Refund(one.start, max(one.end, other.end), one.amount + other.amount)


@dataclass(frozen=True, slots=True)
class Meter(State):
    """Ticks in use, which drain.

    That is the generic cell rate algorithm in its virtual scheduling form (ITU-T I.371, annex A),
    the token bucket with lazy refill, and the leaky bucket as a meter (Turner, 1986).
    """

    at: int  #: when this was written: the start of the last take
    p: int  #: ticks per unit at that time
    q: int  #: ticks per microsecond at that time
    busy: BusyPeriod  #: at that time
    level: int  #: ticks in use at that time
    algorithm: str  #: that of the limit

    @classmethod
    def empty(cls, limit: Limit, since: int) -> Self:
        return cls(since, 0, *limit.ticks, BusyPeriod(0), 0, limit.algorithm)

    def used(self, now: int) -> int:
        """Return the ticks in use. Before ``at``: the level there, and what drains until then."""
        return max(0, self.level - (now - self.at) * self.q)

    def matches(self, limit: Limit) -> bool:
        return (self.algorithm, self.p, self.q) == (limit.algorithm, *limit.ticks)

    def latest_time(self) -> int:
        return self.at

    def rebase(self, limit: Limit, now: int) -> Self:
        # In a new busy period, so that earlier takes are not refunded.
        return self._write(limit, self.level, now, BusyPeriod(now))

    def in_use(self, at: int) -> int:
        return ceil_div(self.used(max(at, self.at - MAX_BOOKING_US)) * MILLION, self.p)

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        p, q = limit.ticks
        excess = self.used(now) + _to_ticks(limit, cost) - limit.burst * p
        return max(0, ceil_div(excess, q))

    def take(self, limit: Limit, cost: int, now: int, at: int) -> Self:
        used = self.used(max(at, now)) + _to_ticks(limit, cost)
        return self._write(limit, used, at, self._busy_period(now))

    def fill(self, limit: Limit, amount: int, at: int) -> Self:
        return self._write(limit, _to_ticks(limit, amount), at, BusyPeriod(at))

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        p, q = limit.ticks
        used = self.used(now)
        return max(0, limit.burst * p - used) * MILLION // p, ceil_div(used, q)

    def mark(self) -> Mark:
        """Return the end of the take: us to drain in this busy period up to it, or refunded."""
        began, refunded = self.busy.began, self.busy.refunded()
        return Mark(self.at - began + self.level // self.q + refunded, began)

    def settle(self, limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Self:
        """Settle a take. Units drain in the order of the takes: a take lasts until its end.

        Refunds of earlier takes have moved that end forward.
        """
        p, q = limit.ticks
        used, busy = self.used(now), self._busy_period(now)
        if actual < cost:
            end = mark.value - busy.refunded(mark.value)
            rest = max(0, busy.began + end - now) * q if mark.more == busy.began else 0
            ticks = _to_ticks(limit, cost)
            refund = min(ticks - _to_ticks(limit, actual), self._refundable(rest, used))
            start = mark.value - ceil_div(ticks, q)
            busy = busy.add_refund(Refund(start, mark.value, ceil_div(refund, q)))
            used -= refund
        else:
            debt = _to_ticks(limit, min(actual - cost, MAX_EXACT // p * MILLION))
            used = min(used + debt, max(used, MAX_EXACT))
        return self._write(limit, used, now, busy)

    def _refundable(self, rest: int, used: int) -> int:
        """Return the ticks in use that may be refunded of a take, which lasts for ``rest``."""
        return min(rest, used)

    def _write(self, limit: Limit, level: int, at: int, busy: BusyPeriod) -> Self:
        return type(self)(self.since, at, *limit.ticks, busy, level, limit.algorithm)

    def _busy_period(self, now: int) -> BusyPeriod:
        return self.busy if self.used(now) else BusyPeriod(now)


class LeakyQueue(Meter):
    """The leaky bucket as a queue: a request starts when the units before it have drained."""

    __slots__ = ()

    def delay(self, now: int) -> int:
        """Return the microseconds until the next request may start, rounded up."""
        return ceil_div(self.used(now), self.q)

    def _refundable(self, rest: int, used: int) -> int:
        """Return none unless the take is the last one: those after it have their starts already."""
        return 0 if used - rest >= self.q else super()._refundable(rest, used)


def _to_ticks(limit: Limit, cost: int) -> int:
    return ceil_div(cost * limit.ticks[0], MILLION)
