"""The waits of a task: one that is over, and one at the broker that lasts."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from celery_throttle.limits.key import LimitRef, check_name


class Wait(NamedTuple):
    """A wait that is over."""

    ref: LimitRef  #: the limit that the task waited for last
    position: int  #: in the line when the task joined it, from 1; 0 without a line
    seconds: float


class BrokerWait(NamedTuple):
    """A wait at the broker. It is a header of the message, as a list."""

    began: float  #: seconds since the epoch, by the clock of the worker that refused the task first
    name: str  #: of the limit that refused it
    key: str | None

    @classmethod
    def read(cls, header: Any) -> BrokerWait | None:
        """Read a header; None if it is malformed."""
        try:
            began, name, key = header
            wait = cls(float(began), check_name(name), key)
        except (TypeError, ValueError):
            return None
        return wait if isinstance(key, (str, type(None))) else None

    def end(self) -> Wait:
        """Return the wait, which is over now."""
        return Wait(LimitRef(self.name, self.key), 0, max(0.0, time.time() - self.began))
