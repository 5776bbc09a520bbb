"""A meter whose rate moves between a lowest and a highest rate, by feedback: AIMD.

Additive increase, multiplicative decrease (Chiu and Jain, 1989). While answers are good, the rate
increases by a hundredth of itself per second, and faster the longer the last decrease lies back. A
refusal, or an answer that took longer than the limit's ``latency``, decreases it to
``KEPT_PERCENT``. If the API tells its own limit, the rate becomes that at once, and does not exceed
it. The first time, units that drained faster before are in use again. The answer to a request that
was sent before the last decrease, or the last change of the API's limit, is ignored. An overload
changes nothing.

Units in use drain at the current rate, so a change of the rate keeps them. No more is admitted than
by a meter of the highest rate. Amounts are ticks of the highest rate, see
:mod:`celery_throttle.algorithms.meters`. Twin: ``adaptive.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor
from typing import NamedTuple

from celery_throttle.algorithms.meters import BusyPeriod, Refund
from celery_throttle.algorithms.state import Mark, State, ceil_div
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.duration import MAX_EXACT, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.limit import MAX_ADAPTIVE_RATIO, MAX_BOOKING_US, Limit
from celery_throttle.limits.rate import MAX_UNITS, Rate

#: Per second of good answers the rate grows by a hundredth of itself; by twice, three times ... as
#: much when there were good answers for each of these times since the last decrease, up to the
#: longest time.
ACCELERATION_US, MAX_ACCELERATION_US = 1_500_000, 30_000_000

#: One answer accounts for at most this time of good answers: before it the API was not tested.
MAX_INCREASE_US = 1_000_000

#: The percentage of the rate that is kept in a decrease; and in another decrease within
#: ``AGAIN_US``, since then the API's own limit is far below.
KEPT_PERCENT, KEPT_PERCENT_AGAIN, AGAIN_US = 93, 85, 2_000_000

#: The time for which a rate below the highest is kept when nothing is in use.
MEMORY_US = 3_600_000_000


class AdaptiveRate(NamedTuple):
    """The current rate. Times are microseconds."""

    share: int = MILLION  #: the rate in millionths of the highest rate
    decreased_at: int = 0  #: the last decrease, or change of ``ceiling``; 0 if there was none
    increased_at: int = 0  #: good answers are included up to this time
    ceiling: int = MILLION  #: the limit of the API, as it told, in millionths of the highest rate


@dataclass(frozen=True, slots=True)
class Adaptive(State):
    """Ticks in use, which drain at a rate that adapts."""

    at: int  #: when this was written: the start of the last take
    p: int  #: ticks per unit, when this was written
    q: int  #: ticks per microsecond at the highest rate
    busy: BusyPeriod  #: at that time
    taken: int  #: ticks taken in this period, refunded or not
    level: int  #: ticks in use at ``at``
    rate: AdaptiveRate

    @classmethod
    def empty(cls, limit: Limit, since: int) -> Adaptive:
        return cls(since, 0, *limit.ticks, BusyPeriod(0), 0, 0, AdaptiveRate())

    def matches(self, limit: Limit) -> bool:
        return (self.p, self.q) == limit.ticks

    def latest_time(self) -> int:
        return self.at

    def rebase(self, _limit: Limit, now: int) -> Adaptive:
        rate = self.rate._replace(
            decreased_at=min(self.rate.decreased_at, now),
            increased_at=min(self.rate.increased_at, now),
        )
        return replace(self, at=now, busy=BusyPeriod(now), taken=self.level, rate=rate)

    def used(self, now: int) -> int:
        """Return the ticks in use. Before ``at``: the level there, and what drains until then."""
        drained = (now - self.at) * self.q * self.rate.share // MILLION
        return max(0, self.level - drained)

    def in_use(self, at: int) -> int:
        return ceil_div(self.used(max(at, self.at - MAX_BOOKING_US)) * MILLION, self.p)

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        return self._drain_time(self.level + self._to_ticks(cost) - limit.burst * self.p, now)

    def take(self, _limit: Limit, cost: int, now: int, at: int) -> Adaptive:
        ticks, here = self._to_ticks(cost), self._write_at(max(at, now), now)
        return replace(here, taken=here.taken + ticks, level=here.level + ticks)

    def remaining_and_reset(self, limit: Limit, now: int) -> tuple[int, int]:
        used = self.used(now)
        return max(0, limit.burst * self.p - used) * MILLION // self.p, self._drain_time(
            self.level, now
        )

    def matters(self, limit: Limit, now: int) -> bool:
        is_slower = self.rate.share < MILLION and now < self.at + MEMORY_US
        return is_slower or self.remaining_and_reset(limit, now)[1] > 0

    def mark(self) -> Mark:
        """Return the ticks taken, up to the end of this take."""
        return Mark(self.taken, self.busy.began)

    def settle(self, _limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Adaptive:
        """Settle a take. Units drain in the order of the takes: later ones are still in use."""
        here = self._write_at(now, now)
        if actual < cost:
            return _refund(here, mark, self._to_ticks(cost), self._to_ticks(actual))
        max_ticks = MAX_EXACT // MAX_ADAPTIVE_RATIO
        debt = self._to_ticks(min(actual - cost, max_ticks // self.p * MILLION))
        used = min(here.level + debt, max(here.level, max_ticks))
        return replace(here, taken=here.taken + used - here.level, level=used)

    def learn(self, limit: Limit, now: int, took: int, feedback: Feedback) -> Adaptive:
        """Return the state after an answer that says something about the rate.

        ``took``: microseconds from the request to the answer.
        """
        rate, ceiling = self.rate, _ceiling(limit, feedback)
        if now - took < rate.decreased_at:
            return self
        here = self._write_at(now, now)
        if ceiling is not None and ceiling != rate.ceiling:
            changed = AdaptiveRate(ceiling, now, now, ceiling)
            if not rate.decreased_at:
                here = _drain_again(here, limit, ceiling, now)
        elif feedback.overloaded:
            return self
        elif feedback.refused or (limit.latency_us is not None and took > limit.latency_us):
            changed = _decrease(rate, limit, now)
        else:
            changed = _increase(rate, now)
        return self if changed is rate else replace(here, rate=changed)

    def _write_at(self, at: int, now: int) -> Adaptive:
        """Return the state as written at a time."""
        used = self.used(at)
        if self.used(now):
            return replace(self, at=at, level=used)
        return replace(self, at=at, level=used, busy=BusyPeriod(now), taken=0)

    def _to_ticks(self, cost: int) -> int:
        return ceil_div(cost * self.p, MILLION)

    def _drain_time(self, ticks: int, now: int) -> int:
        """Return the microseconds from now until ``ticks`` have drained since ``at``."""
        return max(0, self.at + ceil_div(ticks * MILLION, self.q * self.rate.share) - now)


def _refund(state: Adaptive, mark: Mark, cost: int, actual: int) -> Adaptive:
    """Return the state after a refund, in ticks, of what later takes leave of those in use."""
    busy = state.busy
    if mark.more != busy.began:
        return state
    later = state.taken - mark.value - (busy.refunded() - busy.refunded(mark.value))
    refund = max(0, min(cost - actual, state.level - later))
    busy = busy.add_refund(Refund(mark.value - cost, mark.value, refund))
    return replace(state, busy=busy, level=state.level - refund)


def _drain_again(state: Adaptive, limit: Limit, share: int, now: int) -> Adaptive:
    """Return the state as if the rate had been ``share`` since there are units in use.

    At most a burst is in use on top of the full burst then.
    """
    drained = (now - state.busy.began) * state.q * share // MILLION
    used = state.taken - state.busy.refunded() - drained
    return replace(state, level=max(state.level, min(used, 2 * limit.burst * state.p)))


def _decrease(rate: AdaptiveRate, limit: Limit, now: int) -> AdaptiveRate:
    percent = KEPT_PERCENT_AGAIN if now - rate.decreased_at < AGAIN_US else KEPT_PERCENT
    share = max(limit.lowest_share, rate.share * percent // 100)
    return rate._replace(share=share, decreased_at=now, increased_at=now)


def _increase(rate: AdaptiveRate, now: int) -> AdaptiveRate:
    good = min(max(0, now - rate.increased_at), MAX_INCREASE_US)
    since = min(max(0, rate.increased_at - rate.decreased_at), MAX_ACCELERATION_US)
    growth = rate.share * good // MILLION * (ACCELERATION_US + since)
    share = min(rate.ceiling, rate.share + growth // (100 * ACCELERATION_US))
    return rate if share == rate.share else rate._replace(share=share, increased_at=now)


def _ceiling(limit: Limit, feedback: Feedback) -> int | None:
    """Return the limit that the API tells, within the range, in millionths of the highest rate."""
    if feedback.limit is None:
        return None
    assert isinstance(limit.rate, Rate)  # noqa: S101  # it is adaptive
    own = limit.rate.period_us
    period = own if feedback.period is None else max(1, to_us(feedback.period))
    # In doubles, step by step as the script does.
    share = min(feedback.limit, MAX_UNITS) * 1e6 / limit.rate.count * (own / period)
    return min(MILLION, max(limit.lowest_share, floor(min(share, 1e6))))
