"""Units of one limit taken ahead in one call, for limits that tasks pass many times a second.

A worker may have as many unused units as the limit emits in 20 ms. Each unit is used at its own
time or later, while its block is at most 20 ms old, so a start is never before its admission.
Units that are unused by then are lost to the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from celery_throttle.worker import tuning


@dataclass(slots=True)
class Block:
    """Units taken in one call."""

    #: Monotonic time from which the 20 ms count: that of the call, or of its reply if a task waited
    #: for it.
    since: float
    units: int
    at_once: int  #: how many of them may be used at once
    later: float  #: seconds from `since` until the first of the others may be used
    step: float  #: seconds from each of the others to the next
    #: Seconds for which units may be used: less than 20 ms where a window ends.
    good_for: float = tuning.BOOKING_HORIZON_SECONDS
    used: int = 0
    then: Block | None = None  #: the next block, for when this one is used up

    def left(self, now: float) -> int:
        """Return how many units may still be used."""
        return self.units - self.used if now - self.since <= self.good_for else 0

    def is_short(self, now: float) -> bool:
        """Return whether it is time to take more."""
        few = self.units - self.used <= 1 or now - self.since > self.good_for * 0.85
        return few and self.then is None

    def use(self, now: float) -> float | None:
        """Use the next unit. Return the seconds until its time; None if there is no unit."""
        if not self.left(now):
            return None
        index = self.used - self.at_once
        self.used += 1
        at = self.since + self.later + index * self.step
        return max(0.0, at - now) if index >= 0 else 0.0
