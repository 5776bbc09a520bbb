"""When a worker polls for tasks that wait in lines: when one is due and a process is free for it.

Laws at stake here: *never idle*, and *never in the way* (a task is claimed only for a free process;
where tasks queue for processes, the lines queue with them).

The path of one task: the scheduler polls; the claim call (``call.py``) brings the task; it is held
under a claim (``claims.py``) and given to Celery (``dispatch.py``).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from celery.worker import state

from celery_throttle.worker import tuning
from celery_throttle.worker.claims.call import Capacity, ClaimCall
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.claims.wakeup import WakeupListener
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.alarm import Alarm
from celery_throttle.worker.hooks.pool import WorkerPool, scale_up
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.slots import TaskSlots


@dataclass(eq=False, repr=False)
class Scheduler:
    """Polls over one connection to the broker, from its construction until :meth:`stop`.

    With an event loop all methods run in the loop's thread, except those that are thread-safe.
    Without one, the thread of the timers polls.

    ``wakeup`` is the worker's subscription, which each poll renews if it was cut.
    """

    consumer: Any
    timers: Timers
    pool: WorkerPool
    call: ClaimCall
    claims: Claims
    slots: TaskSlots
    revoked: RevokedTasks
    dispatcher: Dispatcher
    wakeup: WakeupListener
    outage: OutageMode
    backoff: Backoff

    def __post_init__(self) -> None:
        timers, backoff = self.timers, self.backoff
        self._poll_alarm = Alarm(timers, lambda: backoff.run_or_queue(self._poll_or_queue))
        self._settle_alarm = Alarm(timers, self._report)
        self._release_alarm = Alarm(timers, self._report)
        self._is_running = True
        self._thread = threading.get_ident()
        self._is_queued = False
        self._queued_at = 0.0
        self._more_are_due = False
        self._began = time.monotonic()

    def stop(self) -> None:
        """Claim nothing from now on. Claims and slots that end are reported at once."""
        self._is_running = False
        for alarm in (self._poll_alarm, self._settle_alarm, self._release_alarm):
            alarm.cancel()

    def poll_in(self, seconds: float) -> None:
        """Poll after some seconds, when a task may be due. Thread-safe."""
        self._poll_alarm.set(seconds)

    def on_wakeup(self) -> None:
        """Poll soon: a line has begun elsewhere."""
        recent = time.monotonic() - self.call.replied_at < tuning.MIN_WAKEUP_INTERVAL_SECONDS
        self.poll_in(tuning.MIN_WAKEUP_INTERVAL_SECONDS if recent else 0)

    def on_released(self) -> None:
        """Report released slots: another task may be waiting for one. Thread-safe."""
        if not self._is_running:
            self.call.report()
        elif (
            self.consumer.hub is not None
            and threading.get_ident() == self._thread
            and not self.pool.runs_inline  # or the next task would run before this one has ended
            and self._count_free() > 0
            and time.monotonic() - self.call.replied_at > tuning.RELEASE_REPORT_SECONDS
        ):
            self._report()
        else:  # together with others that end now
            self._release_alarm.set(0)

    def on_settled(self) -> None:
        """Report settled claims. Thread-safe."""
        if self._is_running:
            self._settle_alarm.set(tuning.SETTLE_REPORT_SECONDS)
        else:
            self.call.report()

    def _poll_or_queue(self) -> None:
        """Poll if a process is free; otherwise queue for one with the tasks that wait for it."""
        if self._count_free() > 0:
            self._poll()
        elif self._is_running and not self._is_queued:
            self._is_queued = True
            self._queued_at = time.monotonic()
            if self._more_are_due:
                self.timers.call_after(tuning.BOOKING_HORIZON_SECONDS, self._scale_up_if_queued)
            self.pool.call_when_free(self._on_process_free)

    def _scale_up_if_queued(self) -> None:
        queued_for = time.monotonic() - self._queued_at
        if self._is_queued and self._is_running and queued_for > tuning.BOOKING_HORIZON_SECONDS / 2:
            scale_up(self.consumer.controller, self.pool)

    def _on_process_free(self) -> None:
        self._is_queued = False
        if self._count_free() > 0:
            self.backoff.run_or_queue(self._poll_or_queue)
        elif self._is_running:
            # The free processes are for booked tasks, and nothing reports the ends of these.
            self.poll_in(tuning.POOL_CHECK_SECONDS)

    def _count_free(self) -> int:
        """Return the number of free processes for which no task is booked."""
        if not self._is_running or _is_stop_requested():
            return 0
        return self.pool.count_free() - len(self.claims.booked())

    def _capacity(self) -> Capacity:
        contended = self.pool.is_contended()
        return Capacity(self._count_free(), 0 if contended else self._count_soon_free(), contended)

    def _count_soon_free(self) -> int:
        """Return how many processes will be free in a moment, if claims start as fast as recently.

        A task that is claimed for one of them starts within 20 ms, or goes back to its line.
        """
        starts = self.claims.recent_starts()
        return int(starts * tuning.SOON_FREE_SECONDS / tuning.BOOKING_HORIZON_SECONDS)

    def _report(self) -> None:
        self.backoff.run_or_queue(self._report_now)

    def _report_now(self) -> None:
        """Report what ended. If slots are released and a process is free, also claim for them."""
        if self.slots.releases and self._count_free() > 0:
            self._poll()
        elif self.slots.releases or self.claims.settled:
            self.call.report()

    def _poll(self) -> None:
        """Claim the tasks that are due, for the free processes."""
        for task in self.revoked.withdraw():
            self.dispatcher.dispatch(task)
        reply = self.call.claim(self._capacity)
        if reply is None:
            # At the end of an outage, `poll_in(0)` follows.
            lost = self.outage.is_on
            self.poll_in(tuning.RETRY_SECONDS if lost else tuning.MIN_WAKEUP_INTERVAL_SECONDS)
            return
        self._more_are_due = bool(reply.tasks) and not reply.wait
        for task in reply.tasks:
            self.dispatcher.dispatch(task)
        if reply.dead_worker and self._had_time_to_renew():
            self.claims.reclaim(reply.dead_worker)
        self.wakeup.listen()
        self.poll_in(reply.wait)

    def _had_time_to_renew(self) -> bool:
        """Whether a worker that lives would have renewed its lease after an outage.

        A worker that has just begun does not know whether there was one. If this worker stood
        still, others may have done so, too: their machine was suspended.
        """
        now, grace = time.monotonic(), tuning.RECLAIM_GRACE_SECONDS
        since_return = now - max(self.outage.ended, self.call.returned_at)
        return since_return > grace and now - self._began > min(grace, self.call.lease)


def _is_stop_requested() -> bool:
    """Return whether a signal has told Celery to stop; its loop may act on that seconds later."""
    exit_codes = (state.should_stop, state.should_terminate)
    return any(code is not None and code is not False for code in exit_codes)  # 0 is a code, too
