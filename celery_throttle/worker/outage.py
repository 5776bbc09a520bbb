"""The mode of a worker: it asks the server, or, while that is lost, decides by itself.

Each change of mode is logged once, told by a signal, and counted for ``celery inspect stats``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.changes import MICROSECONDS
from celery_throttle.errors import StoreError
from celery_throttle.fallback import Fallback
from celery_throttle.needs import Need
from celery_throttle.scope import LimitRef

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.fleet import Fleet
    from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)


class Outage:
    """Of one worker.

    Args:
        throttle: the app's limits.
        fleet: knows the other workers and the limits, and tries until the server is back.
        slots: those that the tasks of this worker hold.

    Attributes:
        count: how often it was.
        ended: monotonic time at which it was back last; 0.0 if it was never lost.
    """

    def __init__(self, throttle: Throttle, fleet: Fleet, slots: TaskSlots) -> None:
        self._throttle = throttle
        self._fleet = fleet
        self._slots = slots
        self._lock = threading.Lock()
        self._fallback: Fallback | None = None
        self._began = 0.0
        self._seconds = 0.0
        self.count = 0
        self.ended = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the server is lost."""
        return self._fallback is not None

    def begin(self, error: StoreError) -> None:
        """The server does not answer. From any thread."""
        # Also if it is on: the server may just have been back, which nobody here has heard of yet.
        self._fleet.lose()
        with self._lock:
            if self._fallback is not None:
                return
            self._fallback = Fallback(self._fleet.limits(), self._fleet.size, self._held)
            self._began = time.monotonic()
            self.count += 1
        logger.error(
            "Limits are decided by each of %d workers alone from now on: %s",
            self._fleet.size,
            error,
        )
        self._tell("outage")

    def end(self) -> None:
        """The server is back."""
        with self._lock:
            if self._fallback is None:
                return
            self._fallback = None
            self.ended = time.monotonic()
            self._seconds += self.ended - self._began
        logger.warning(
            "The server of the limits is back after %.1f s: it decides again",
            self.ended - self._began,
        )
        self._tell("normal")

    def wait(self, need: Need, *, waited: bool) -> float | None:
        """Seconds until a task may try; 0.0: it may run; None: when the server is back."""
        fallback = self._fallback
        if fallback is None:  # it has just ended
            return None
        now = int(time.monotonic() * MICROSECONDS)
        wait = fallback.wait(need, now, waited=waited)
        return None if wait is None else wait / MICROSECONDS

    def stats(self) -> dict[str, Any]:
        """What ``celery inspect stats`` shows."""
        seconds = self._seconds + (time.monotonic() - self._began if self.is_on else 0.0)
        mode = "outage" if self.is_on else "normal"
        return {"mode": mode, "outages": self.count, "seconds": round(seconds, 1)}

    def _held(self, ref: LimitRef) -> int:
        return self._slots.count(self._throttle.keys.entries(ref))

    def _tell(self, mode: str) -> None:
        signals.throttle_mode_changed.send(sender=self._throttle.app, mode=mode, count=self.count)
