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
        taken: monotonic time at which the reply came (never before the server's decision).
        units: how many were taken.
        at_once: how many of these may be used at once.
        later: seconds from ``taken`` to the slot of the first of the others.
        step: seconds from each of their slots to the next.
        used: how many were used.
    """

    taken: float
    units: int
    at_once: int
    later: float
    step: float
    used: int = 0

    def use(self, now: float) -> float | None:
        """Use the next unit: seconds until its slot, or None if there is none to use."""
        age = now - self.taken
        if self.used >= self.units or age > HORIZON:
            return None
        behind = self.used - self.at_once
        self.used += 1
        return max(0.0, self.later + behind * self.step - age) if behind >= 0 else 0.0


class Demand:
    """How often each limit was passed in the last 20 ms: as many units are worth taking ahead."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, int, int]] = {}

    def count(self, key: Hashable, now: float) -> int:
        """Count one more, and tell how many to take: at least 1."""
        began, before, current = self._counts.get(key, (now, 0, 0))
        age = now - began
        if age > HORIZON:
            before, current, began = (current if age < 2 * HORIZON else 0), 0, now
        if len(self._counts) > _REMEMBERED:
            self._counts.clear()
        self._counts[key] = (began, before, current + 1)
        return max(1, before, current + 1)
