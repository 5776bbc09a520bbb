"""A meter whose rate moves between two bounds, by what answers say: AIMD.

Additive increase, multiplicative decrease (Chiu and Jain, 1989): while answers are good the rate
grows by a hundredth of its upper bound in a second; a refusal, or an answer that took longer than
the limit's ``latency``, lets it fall to ``KEPT`` of what it was. An answer to a request that was
sent before the last fall says nothing new, and lets it neither fall nor grow.

What is in use are units, which drain at the rate of the moment, so that a change of the rate keeps
them; at no rate between the bounds more is admitted than by a meter of the upper one. Amounts are
ticks of the upper rate, see :mod:`celery_throttle.algorithms.meters`. Twin: ``adaptive.lua``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_throttle.algorithms.state import Mark, State, divided_up
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.limit import FARTHEST, RANGE, Limit
from celery_throttle.limits.rate import MAX_EXACT

#: Microseconds of good answers in which the rate grows by a millionth of its upper bound: by a
#: hundredth in a second.
GROWTH = 100

#: Microseconds without an answer beyond which it does not grow: nobody knows what would have been.
LONGEST_GROWTH = 1_000_000

#: The part of a rate, in hundredths, that is left of it when it falls; and when it falls again
#: within ``AGAIN`` microseconds: then the API's own limit is far below.
KEPT, KEPT_AGAIN, AGAIN = 93, 85, 2_000_000

#: Microseconds for which a refusal stops the limit if the answer does not say; twice as long for
#: each in a row, at most ``LONGEST_REST``.
REST, LONGEST_REST = 100_000, 10_000_000

#: Microseconds for which a rate below the upper bound is remembered after the last answer.
MEMORY = 3_600_000_000


class Speed(NamedTuple):
    """The rate of the moment.

    Attributes:
        share: in millionths of the upper bound.
        fell: when it fell last, in microseconds; 0 if it never did.
        grew: until when good answers are counted in.
        refusals: since the last good answer.
    """

    share: int = MILLION
    fell: int = 0
    grew: int = 0
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Adaptive(State):
    """What one limit and key remembers.

    Attributes:
        at: when this was written: the start of the last take.
        p: ticks a unit, when this was written; ``q``: ticks a microsecond, at the upper rate.
        began: since when there was always something in use.
        taken: ticks that were taken since then, refunded or not.
        in_use_then: ticks in use at ``at``.
        speed: the rate.
    """

    at: int
    p: int
    q: int
    began: int
    taken: int
    in_use_then: int
    speed: Speed

    @classmethod
    def empty(cls, limit: Limit, since: int) -> Adaptive:
        return cls(since, 0, *limit.ticks, 0, 0, 0, Speed())

    def is_of(self, limit: Limit) -> bool:
        return (self.p, self.q) == limit.ticks

    def written(self) -> int:
        return self.at

    def moved_back(self, _limit: Limit, now: int) -> Adaptive:
        fell, grew = min(self.speed.fell, now), min(self.speed.grew, now)
        speed = self.speed._replace(fell=fell, grew=grew)
        return replace(self, at=now, began=now, taken=self.in_use_then, speed=speed)

    def used(self, now: int) -> int:
        """The ticks in use; before ``at`` those that will be, and what drains until then."""
        drained = (now - self.at) * self.q * self.speed.share // MILLION
        return max(0, self.in_use_then - drained)

    def in_use(self, at: int) -> int:
        return divided_up(self.used(max(at, self.at - FARTHEST)) * MILLION, self.p)

    def wait(self, limit: Limit, cost: int, now: int) -> int:
        return self._until(self.in_use_then + self._ticks(cost) - limit.burst * self.p, now)

    def take(self, _limit: Limit, cost: int, now: int, at: int) -> Adaptive:
        ticks, here = self._ticks(cost), self._now(max(at, now), now)
        return replace(here, taken=here.taken + ticks, in_use_then=here.in_use_then + ticks)

    def left(self, limit: Limit, now: int) -> tuple[int, int]:
        used = self.used(now)
        return max(0, limit.burst * self.p - used) * MILLION // self.p, self._until(
            self.in_use_then, now
        )

    def mark(self) -> Mark:
        """How much had been taken with it."""
        return Mark(self.taken, self.began)

    def settle(self, _limit: Limit, mark: Mark, cost: int, actual: int, now: int) -> Adaptive:
        """Units drain in the order in which they came: those taken after it are still in use."""
        here = self._now(now, now)
        if actual < cost:
            after = here.taken - mark.value if mark.more == here.began else here.taken
            refund = min(self._ticks(cost) - self._ticks(actual), here.in_use_then - after)
            return replace(here, in_use_then=here.in_use_then - max(0, refund))
        most = MAX_EXACT // RANGE
        owed = self._ticks(min(actual - cost, most // self.p * MILLION))
        used = min(here.in_use_then + owed, max(here.in_use_then, most))
        return replace(here, taken=here.taken + used - here.in_use_then, in_use_then=used)

    def answered(self, limit: Limit, now: int, took: int, *, refused: bool) -> tuple[Adaptive, int]:
        """The state once an answer is known, and microseconds for which the limit should rest.

        Args:
            limit: of this.
            now: when.
            took: microseconds from the request to the answer.
            refused: whether the answer was a refusal.
        """
        speed = self.speed
        if now - took < speed.fell:
            return self, 0
        if refused:
            rest = min(REST << min(speed.refusals, 10), LONGEST_REST)
            fallen = _fallen(speed, limit, now)._replace(refusals=speed.refusals + 1)
            return replace(self._now(now, now), speed=fallen), rest
        if limit.latency_us is not None and took > limit.latency_us:
            return replace(self._now(now, now), speed=_fallen(speed, limit, now)), 0
        steps = min(max(0, now - speed.grew), LONGEST_GROWTH) // GROWTH
        if (speed.share == MILLION or steps == 0) and speed.refusals == 0:
            return self, 0
        grown = speed._replace(share=min(MILLION, speed.share + steps), grew=now, refusals=0)
        return replace(self._now(now, now), speed=grown), 0

    def _now(self, at: int, now: int) -> Adaptive:
        """The same, written at a time."""
        used = self.used(at)
        if self.used(now):
            return replace(self, at=at, in_use_then=used)
        return replace(self, at=at, in_use_then=used, began=now, taken=0)

    def _ticks(self, cost: int) -> int:
        return divided_up(cost * self.p, MILLION)

    def _until(self, ticks: int, now: int) -> int:
        """Microseconds from now until so much has drained since this was written."""
        return max(0, self.at + divided_up(ticks * MILLION, self.q * self.speed.share) - now)


def _fallen(speed: Speed, limit: Limit, now: int) -> Speed:
    kept = KEPT_AGAIN if now - speed.fell < AGAIN else KEPT
    share = max(limit.floor, speed.share * kept // 100)
    return speed._replace(share=share, fell=now, grew=now)
