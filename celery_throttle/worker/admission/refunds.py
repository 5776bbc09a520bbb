"""Gives back the units of starts that do not come: their tasks came too late, or not at all.

Laws at stake here: *never over* (the units of a start are given back by one call, even if that
fails, and no task uses them afterwards) and *never idle* (a limit that gives a unit an hour loses
none to a worker that was busy for 20 ms).
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from celery_throttle.operations.acquire import settle_takes
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import run_together
from celery_throttle.worker.health.loop_calls import LateReplyError, LoopCalls
from celery_throttle.worker.hooks.timers import Alarm, Timers
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import TaskState


@dataclass(eq=False, repr=False)
class Refunds:
    """Watches the booked starts of one gate. Its methods raise nothing if the server fails."""

    throttle: AppLimits
    calls: LoopCalls
    timers: Timers
    #: Held while a gate decides, and while units are given back.
    deciding: AbstractContextManager[Any]

    def __post_init__(self) -> None:
        self._starts: set[Start] = set()
        self._alarm = Alarm(self.timers, lambda: self.calls.run_or_queue(self._give_back_in_time))

    def watch(self, start: Start | None) -> None:
        """Give back the units of a start unless a task uses them in time.

        A task that holds a slot may start at any time: only :meth:`end` ends its start.
        """
        if start is not None and start.takes and start.until < math.inf:
            self._starts.add(start)
            self._alarm.set(tuning.BOOKING_HORIZON_SECONDS)

    def end(self, task: TaskState) -> None:
        """End the booked start of a task, if it has one; give back the units, now or soon."""
        with self.deciding:
            start, task.start = task.start, None
            if start is not None and start.takes:
                start.lasts = -math.inf
                self._starts.add(start)
                self.calls.run_or_queue(self._give_back_in_time)

    def give_back(self, now: float = math.inf) -> None:
        """Give back the units that no task has used until a time, by default all that are left."""
        plans, starts, self._starts = [], self._starts, set()
        for start in starts:
            if start.takes and now <= start.until:
                self._starts.add(start)
            elif start.takes:
                takes = start.end()  # before the call: if it fails, it may have been executed
                plans.append(settle_takes(self.throttle.plans, [(take, 0) for take in takes]))
        if plans:
            with suppress(LateReplyError):
                self.calls.run(run_together(self.throttle, plans), lambda _: None)

    def _give_back_in_time(self) -> None:
        with self.deciding:
            self.give_back(time.monotonic())
        if self._starts:
            self._alarm.set(tuning.BOOKING_HORIZON_SECONDS)
