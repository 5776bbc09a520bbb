"""Booked starts: the times of tasks whose units are taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from celery_throttle.operations.acquire import Taken
from celery_throttle.worker import tuning


@dataclass(slots=True, eq=False)
class Start:
    """A start of one task, whose units are taken. It comes at its time, or at most 20 ms later.

    If it does not come, its takes are given back, see `admission/refunds.py`. There are none if all
    its limits give the units again within a second, unless the run settles.
    """

    at: float  #: monotonic time
    takes: Sequence[Taken] = ()
    settles: bool = False  #: whether the run settles the takes
    #: Seconds after `at` until which it may come.
    lasts: float = tuning.BOOKING_HORIZON_SECONDS

    @property
    def until(self) -> float:
        """The monotonic time until which it may come."""
        return self.at + self.lasts

    def move(self, at: float) -> None:
        """Let the start come at another monotonic time."""
        self.at, self.lasts = at, tuning.BOOKING_HORIZON_SECONDS

    def use(self) -> Sequence[Taken]:
        """Use the units: the task starts now. Return the takes that its run settles."""
        takes, self.takes = self.takes, ()
        return takes if self.settles else ()

    def end(self) -> Sequence[Taken]:
        """Let the start not come any more. Return the takes to give back: only this caller may."""
        takes, self.takes, self.lasts = self.takes, (), -math.inf
        return takes
