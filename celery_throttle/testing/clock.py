"""A clock for tests; the fixture ``throttle_clock`` makes one."""

from __future__ import annotations

from dataclasses import dataclass

from celery_throttle.limits.duration import to_us


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only by :meth:`advance` and by waits. A limiter with it never sleeps.

    Attributes:
        now: The time in microseconds; default 0.

    Example:
        ::

            clock = ManualClock()
            limiter = Limiter("memory://", {"mail": "1/s"}, clock=clock)
            limiter["mail"].acquire()
            clock.advance(1)
            assert limiter["mail"].try_acquire()
    """

    now: int = 0

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        Args:
            seconds: Seconds, 0 or more.
        """
        self.now += to_us(seconds)
