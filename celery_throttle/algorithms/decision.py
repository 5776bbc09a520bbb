"""The decision about one request, from what it requests of each limit. Twin: ``decision.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_throttle.algorithms.adaptive import Adaptive
from celery_throttle.algorithms.meters import LeakyQueue
from celery_throttle.algorithms.slots import Slots
from celery_throttle.algorithms.state import State
from celery_throttle.limits.cost import MILLION, to_units
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit


class LimitCheck(NamedTuple):
    """One limit of a name and key at the time of a decision, and the requested cost.

    Times are microseconds.
    """

    ref: LimitRef
    limit: Limit
    state: State
    cost: int
    max_delay: int | None = None  #: the longest delay that the request accepts; None: any
    ends_in: int | None = None  #: until another definition is in force, if that is known
    blocked: int = 0  #: for how long a pause or the cap on keys blocks any request

    def wait(self, now: int) -> int:
        """Return the time until the request would pass."""
        if self.max_delay is not None and self.delay(now) > self.max_delay:
            wait = self.delay(now) - self.max_delay
        else:
            wait = self.state.wait(self.limit, self.cost, now)
        return max(self.blocked, wait if self.ends_in is None else min(wait, self.ends_in))

    def delay(self, now: int) -> int:
        """Return the time until a request that is admitted now may start."""
        return self.state.delay(now) if isinstance(self.state, LeakyQueue) else 0

    def remaining_and_reset(self, now: int) -> tuple[int, int]:
        """Return the amount that could pass now, and the time until nothing is in use."""
        amount, reset = self.state.remaining_and_reset(self.limit, now)
        return (0, max(self.blocked, reset)) if self.blocked else (amount, reset)

    def take(self, now: int, delay: int) -> LimitCheck:
        """Take the cost. The lease of a slot begins with the start of its holder."""
        at = now + delay if isinstance(self.state, Slots) else now
        return self._replace(state=self.state.take(self.limit, self.cost, now, at))

    def learn(self, feedback: Feedback, now: int) -> State:
        """Return the state after feedback; at most as many units remain as the API says."""
        state = self.state
        is_slots, learns = isinstance(state, Slots), self.limit.is_adaptive
        if isinstance(state, (Adaptive, Slots)) and learns and feedback.took is not None:
            state = state.learn(self.limit, now, to_us(feedback.took), feedback)
        if feedback.left is None or is_slots:
            return state
        own, _ = state.remaining_and_reset(self.limit, now)
        if own <= feedback.left * MILLION:
            return state
        return state.take(self.limit, own - feedback.left * MILLION, now, now)


def decide(
    checks: Sequence[LimitCheck], now: int, *, take: bool
) -> tuple[Decision, Sequence[LimitCheck], LimitRef | None]:
    """Return the decision, the limits after it, and the limit that refuses, if one does."""
    waits = [check.wait(now) for check in checks]
    wait = max(waits)
    delay = max(check.delay(now) for check in checks) if wait == 0 else 0
    take = take and wait == 0
    if take:
        checks = [check.take(now, delay) for check in checks]
    left = [check.remaining_and_reset(now) for check in checks]
    units = [amount // MILLION for amount, _ in left]
    index = waits.index(wait) if wait else units.index(min(units))
    ref = checks[index].ref if wait else None
    decision = Decision(
        allowed=wait == 0,
        burst=checks[index].limit.burst,
        remaining=units[index],
        retry_after=wait / MICROSECONDS,
        reset_after=max(reset for _, reset in left) / MICROSECONDS,
        limited_by=ref.name if ref else None,
        granted=to_units(checks[0].cost) if take else 0,
        delay=delay / MICROSECONDS,
    )
    return decision, checks, ref
