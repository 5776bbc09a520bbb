"""Pauses of limits in memory, and those that escalate.

Refusals in a row, without a time, stop a limit for longer each time. A row ends with the first
request that the API accepts, or if no request was refused for a minute after its last pause. Pauses
below a second double. Others grow by 10 to 30 percent, at random, so that clients of one API do not
return together: a limit goes on at the latest when a third as much time has passed since the API
recovered as it was unavailable. Twin: in ``learn.lua``.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from celery_throttle.algorithms.state import is_ahead
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.feedback import (
    ADAPTIVE_STOP_SECONDS,
    DEFAULT_STOP_SECONDS,
    Feedback,
)
from celery_throttle.limits.key import LimitRef

#: The longest pause, and for how long after its pause a row is remembered, in microseconds.
MAX_STOP_US, ROW_MEMORY_US = 300_000_000, 60_000_000


class Pause(NamedTuple):
    """A pause of a name, or of one key of it, in microseconds. Twin: ``pauses.lua``."""

    until: int
    written: int

    def follow_clock(self, now: int) -> Pause:
        """Return the pause with the same time left, if the clock was set back."""
        if not is_ahead(self.written, now):
            return self
        return Pause(self.until - self.written + now, now)


class RefusalRow(NamedTuple):
    """Refusals in a row, in microseconds."""

    stop: int  #: the last pause
    at: int  #: when the refusal came that began it

    def is_over(self, now: int) -> bool:
        """Whether the row no longer matters."""
        return now >= self.at + self.stop + ROW_MEMORY_US

    def was_sent_before(self, took: int, now: int) -> bool:
        """Whether the request of an answer that comes now was sent before the last pause began."""
        return self.at <= now and now - took < self.at

    def next_stop(self, first: int, now: int) -> int:
        """Return the next pause; ``first``: the shortest."""
        percent = 1000 if self.stop < MICROSECONDS else 100 + now % 201
        return min(MAX_STOP_US, max(first, self.stop + self.stop * percent // 1000))


class RefusalRows:
    """The rows of all limits and keys."""

    def __init__(self) -> None:
        self._rows: OrderedDict[LimitRef, RefusalRow] = OrderedDict()

    def next_stop(self, ref: LimitRef, feedback: Feedback, now: int, *, is_adaptive: bool) -> int:
        """Return the microseconds for which an answer stops a limit, and count its row."""
        if feedback.stop is not None:
            return to_us(feedback.stop)
        row, took = self._rows.get(ref), to_us(feedback.took or 0.0)
        if row is not None and row.was_sent_before(took, now):
            return 0
        if not feedback.refused and not feedback.overloaded:
            if feedback.took is not None:
                self._rows.pop(ref, None)
            return 0
        is_shorter = feedback.refused and is_adaptive
        stop = to_us(ADAPTIVE_STOP_SECONDS if is_shorter else DEFAULT_STOP_SECONDS)
        if row is not None and not row.is_over(now):
            stop = row.next_stop(stop, now)
        self._rows[ref] = RefusalRow(stop, now)
        return stop

    def forget_over(self, now: int) -> None:
        """Forget a row or two that are over: those that were checked longest ago."""
        for _ in range(min(2, len(self._rows))):
            ref, row = self._rows.popitem(last=False)
            if not row.is_over(now):
                self._rows[ref] = row
