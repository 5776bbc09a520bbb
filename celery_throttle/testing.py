"""Tools for tests of code that uses limits."""

from __future__ import annotations

from dataclasses import dataclass

from celery_throttle.limits.duration import to_us


@dataclass(slots=True)
class ManualClock:
    """A clock that only :meth:`advance` moves. A limiter with it never sleeps: waits advance it.

    Attributes:
        now: microseconds.
    """

    now: int = 0

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += to_us(seconds)
