"""Units of one limit taken ahead in one call, for limits that tasks pass many times a second.

A worker may hold as many units as the limit emits in 20 ms. Each is used from the moment its own
slot comes, and given out while the block is at most 20 ms old, so a start is never before its
admission. What is not given out by then is lost to the limit: its slots have passed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

#: Seconds for which units may be held.
HORIZON = 0.020

#: Limits and keys of which the demand is remembered; beyond, it is counted anew.
_REMEMBERED = 4096


@dataclass(slots=True)
class Block:
    """Units in hand.

    Attributes:
        since: monotonic time from which their 20 ms count: that of the call, or of its reply when
            a task waited for it.
        units: how many were taken.
        at_once: how many of these may be used at once.
        later: seconds from ``since`` to the slot of the first of the others.
        step: seconds from each of their slots to the next.
        good_for: seconds for which it may be used: less than 20 ms where a window ends.
        used: how many were used.
        then: units taken since, for when these are used up.
    """

    since: float
    units: int
    at_once: int
    later: float
    step: float
    good_for: float = HORIZON
    used: int = 0
    then: Block | None = None

    def left(self, now: float) -> int:
        """How many units may still be used."""
        return self.units - self.used if now - self.since <= self.good_for else 0

    def is_short(self, now: float) -> bool:
        """Whether it is time to take more."""
        few = self.units - self.used <= 1 or now - self.since > self.good_for * 0.85
        return few and self.then is None

    def use(self, now: float) -> float | None:
        """Use the next unit: seconds until its slot, or None if there is none to use."""
        if not self.left(now):
            return None
        behind = self.used - self.at_once
        self.used += 1
        slot = self.since + self.later + behind * self.step
        return max(0.0, slot - now) if behind >= 0 else 0.0


class Demand:
    """How often each limit was passed in the last 20 ms: as many units are worth taking ahead."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, int, int]] = {}

    def count(self, key: Hashable, now: float) -> None:
        """Count one more."""
        began, before, current = self._counts.get(key, (now, 0, 0))
        age = now - began
        if age > HORIZON:
            before, current, began = (current if age < 2 * HORIZON else 0), 0, now
        if len(self._counts) > _REMEMBERED:
            self._counts.clear()
        self._counts[key] = (began, before, current + 1)

    def recent(self, key: Hashable, now: float) -> int:
        """How many were counted in 20 ms of late."""
        began, before, current = self._counts.get(key, (now, 0, 0))
        return max(before, current) if now - began <= 2 * HORIZON else 0
