"""The mode of a worker: it asks the server, or, while that is lost, decides by itself.

Each change of mode is logged once, told by a signal, and counted for ``celery inspect stats``.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.worker.health.fallback import Fallback

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.claims.slots import TaskSlots
    from celery_throttle.worker.health.membership import Fleet

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
        self._grace_ends: float | None = None
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
            self._began = time.monotonic()
            workers = self._fleet.size.known
            grace = 0.0 if workers else self._throttle.settings.outage_grace
            self._grace_ends = self._began + grace if grace else None
            limits, begins = self._fleet.limits(), to_us(self._began + grace)
            pauses = self._fleet.pauses()
            self._fallback = Fallback(limits, workers or 1, self._held, begins, pauses)
            self.count += 1
        self._log(error, workers, grace)
        self._tell("outage")

    def _log(self, error: StoreError, workers: int | None, grace: float) -> None:
        if not self._throttle.limits:
            logger.info("No task is taken out of a line until the server is back: %s", error)
            return
        if grace:
            logger.error(
                "OUTAGE: %s. This worker does not know how many others there are, so nothing with "
                "a limit starts here before %s (throttle_outage_grace: %g s), save where all "
                "limits say 'outage open'. Set throttle_workers to avoid this",
                error,
                time.strftime("%H:%M:%S", time.localtime(time.time() + grace)),
                grace,
            )
            return
        before = "" if self._fleet.size.is_heard else " (not heard since this worker started)"
        logger.error(
            "Limits are decided by each of %d workers alone%s from now on: %s",
            workers or 1,
            before,
            error,
        )

    def _log_end_of_grace(self) -> None:
        """Once, by the first task that is decided after it."""
        with self._lock:
            ends, over = self._grace_ends, False
            if ends is not None and time.monotonic() >= ends:
                self._grace_ends, over = None, True
        if over:
            logger.error(
                "The server of the limits is still lost, and this worker has heard of no other: it "
                "uses the whole of each limit from now on"
            )

    def end(self) -> None:
        """The server is back."""
        with self._lock:
            if self._fallback is None:
                return
            self._fallback = self._grace_ends = None
            self.ended = time.monotonic()
            self._seconds += self.ended - self._began
        logger.log(
            logging.WARNING if self._throttle.limits else logging.INFO,
            "The server of the limits is back after %.1f s: it decides again",
            self.ended - self._began,
        )
        self._tell("normal")

    def wait(self, need: Requirement, *, waited: bool) -> float | None:
        """Seconds until a task may try; 0.0: it may run; None: when the server is back."""
        fallback = self._fallback
        if fallback is None:  # it has just ended
            return None
        if self._grace_ends is not None:
            self._log_end_of_grace()
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
