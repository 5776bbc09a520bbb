"""Pauses of limits in memory."""

from __future__ import annotations

from typing import NamedTuple

from celery_throttle.algorithms.state import is_ahead


class Pause(NamedTuple):
    """A pause of a name, or of one key of it, in microseconds. Twin: ``pauses.lua``."""

    until: int
    written: int

    def follow_clock(self, now: int) -> Pause:
        """Return the pause with the same time left, if the clock was set back."""
        if not is_ahead(self.written, now):
            return self
        return Pause(self.until - self.written + now, now)
