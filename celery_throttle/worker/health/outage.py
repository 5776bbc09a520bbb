"""The mode of a shard: its server decides, or, during an outage, the worker by itself.

Each change of mode is logged once, announced by the signal ``throttle_mode_changed``, and counted
for ``celery inspect stats`` and, at the end of the outage, for the metrics.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import MICROSECONDS, to_us
from celery_throttle.limits.requirement import Requirement
from celery_throttle.store.script import Call, script
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker.health.fallback import Fallback
from celery_throttle.worker.membership.membership import Membership
from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class OutageMode:
    """Switches one shard of a worker to outage mode and back, and decides during an outage."""

    throttle: AppLimits
    membership: Membership
    slots: TaskSlots
    count: int = 0  #: number of outages since the worker started
    ended: float = 0.0  #: monotonic time at which the last outage ended; 0.0 if there was none

    def __post_init__(self) -> None:
        throttle = self.throttle
        #: Whether there are limits; without them an outage is no error.
        self._has_limits = bool(throttle.limits or throttle.rules_file)
        self._lock = threading.Lock()
        self._fallback: Fallback | None = None
        self._began = 0.0
        self._grace_ends: float | None = None
        self._seconds = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the server is lost."""
        return self._fallback is not None

    def begin(self, error: StoreError) -> None:
        """Begin an outage: the server does not answer. Thread-safe."""
        # Also during an outage: the server may just have been back, which is not known here yet.
        self.membership.reconnect()
        with self._lock:
            if self._fallback is not None:
                return
            self._began = time.monotonic()
            workers = self.membership.worker_count.known
            grace = 0.0 if workers else self.throttle.settings.outage_grace
            self._grace_ends = self._began + grace if grace else None
            self._fallback = Fallback(
                self.membership.limits(),
                workers or 1,
                lambda ref: self.slots.count(self.throttle.keys.entries(ref)),
                to_us(self._began + grace),
                self.membership.pauses(),
            )
            self.count += 1
        self._log_begin(error, workers, grace)
        self._send_signal("outage")

    def _log_begin(self, error: StoreError, workers: int | None, grace: float) -> None:
        if not self._has_limits:
            logger.info("No task leaves its line until the server is back: %s", error)
        elif grace:
            logger.error(
                "OUTAGE: %s. This worker does not know the number of workers, so nothing with a "
                "limit starts here before %s (throttle_outage_grace: %g s), except where all "
                "limits say 'outage open'. Set throttle_outage_workers to avoid this",
                error,
                time.strftime("%H:%M:%S", time.localtime(time.time() + grace)),
                grace,
            )
        else:
            logger.error(
                "OUTAGE: %s. This worker enforces 1/%d of each limit%s",
                error,
                workers or 1,
                self._source_of_count(workers),
            )

    def _source_of_count(self, workers: int | None) -> str:
        if self.membership.worker_count.is_reported:
            return ""
        known = "is not from the server but stored or configured" if workers else "is not known"
        return f"; the number of workers {known}"

    def _log_end_of_grace(self) -> None:
        """Log the end of the grace period once, when the first task is decided after it."""
        with self._lock:
            ends, over = self._grace_ends, False
            if ends is not None and time.monotonic() >= ends:
                self._grace_ends, over = None, True
        if over:
            logger.error(
                "The server is still lost, and this worker knows of no other worker: it enforces "
                "the whole of each limit from now on"
            )

    def end(self) -> None:
        """End the outage: the server is back."""
        with self._lock:
            if self._fallback is None:
                return
            self._fallback = self._grace_ends = None
            self.ended = time.monotonic()
            seconds = self.ended - self._began
            self._seconds += seconds
        logger.log(
            logging.WARNING if self._has_limits else logging.INFO,
            "The server is back after %.1f s and decides again",
            seconds,
        )
        self._report(seconds)
        self._send_signal("normal")

    def _report(self, seconds: float) -> None:
        """Add the outage to those of all workers, for the metrics."""
        call = Call(script("count_outage"), [self.throttle.keys.outages], [to_us(seconds)])
        # Not repeated: the call that failed may have been executed, and would count twice.
        with suppress(StoreError):
            self.throttle.store.run(call)

    def wait(self, requirement: Requirement, *, waited: bool) -> float | None:
        """Take what a task requires, or return the seconds that the task has to wait.

        Returns:
            0.0 if the task may run; None if it has to wait until the server is back.
        """
        fallback = self._fallback
        if fallback is None:  # the outage has just ended
            return None
        if self._grace_ends is not None:
            self._log_end_of_grace()
        now = int(time.monotonic() * MICROSECONDS)
        wait = fallback.wait(requirement, now, waited=waited)
        return None if wait is None else wait / MICROSECONDS

    def stats(self) -> dict[str, Any]:
        """Return the mode, and number and seconds of outages, for ``celery inspect stats``."""
        seconds = self._seconds + (time.monotonic() - self._began if self.is_on else 0.0)
        mode = "outage" if self.is_on else "normal"
        return {"mode": mode, "outages": self.count, "seconds": round(seconds, 1)}

    def _send_signal(self, mode: str) -> None:
        signals.throttle_mode_changed.send(
            sender=self.throttle.app,
            mode=mode,
            count=self.count,
            server=self.throttle.store.url,
            prefix=self.throttle.keys.prefix,
        )
