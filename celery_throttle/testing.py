"""For tests of code that uses limits: time in one's own hands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to. A limiter with it never sleeps: waiting moves it.

    Attributes:
        now: microseconds.
    """

    now: int = 0

    def advance(self, seconds: float) -> None:
        """Move on by some seconds."""
        self.now += round(seconds * 1_000_000)
