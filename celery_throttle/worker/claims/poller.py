"""Polls of one shard: when its worker calls its server, and what follows from the reply.

The claim call brings tasks for the processes that are free. Without a free process it reports what
has ended: settled claims and released slots.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from celery_throttle.worker import tuning
from celery_throttle.worker.claims.call import Capacity, ClaimCall
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.claims.scheduler import Scheduler
from celery_throttle.worker.claims.wakeup import WakeupListener
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.timers import Alarm, Timers


@dataclass(eq=False, repr=False)
class Poller:
    """Polls for the tasks of one shard, over one connection to the broker, until :meth:`stop`.

    ``wakeup`` is the subscription of the worker, which each poll renews if it was cut.
    """

    scheduler: Scheduler
    consumer: Any
    timers: Timers
    call: ClaimCall
    revoked: RevokedTasks
    dispatcher: Dispatcher
    wakeup: WakeupListener
    outage: OutageMode
    more_are_due: bool = False  #: whether the last poll left tasks that are due

    def __post_init__(self) -> None:
        self._settle_alarm = Alarm(self.timers, self._report)
        self._release_alarm = Alarm(self.timers, self._report)
        call = self.call
        self._claims, self._slots, self._backoff = call.claims, call.slots, call.backoff
        self._thread = threading.get_ident()
        self._began = time.monotonic()

    def stop(self) -> None:
        """Make no call later: claims and slots that end are reported at once from now on."""
        self._settle_alarm.cancel()
        self._release_alarm.cancel()

    def poll_in(self, seconds: float) -> None:
        """Poll after some seconds, when a task may be due. Thread-safe."""
        self.scheduler.poll_in(self, seconds)

    def on_wakeup(self) -> None:
        """Poll soon: a line may be due, see ``wakeup.py``."""
        recent = time.monotonic() - self.call.replied_at < tuning.MIN_WAKEUP_INTERVAL_SECONDS
        self.poll_in(tuning.MIN_WAKEUP_INTERVAL_SECONDS if recent else 0)

    def on_released(self) -> None:
        """Report released slots: another task may be waiting for one. Thread-safe."""
        scheduler = self.scheduler
        if not scheduler.is_running:
            self.call.report()
        elif (
            self.consumer.hub is not None
            and threading.get_ident() == self._thread
            # Or the next task would run before this one has ended.
            and not scheduler.pool.runs_inline
            and scheduler.count_free() > 0
            and time.monotonic() - self.call.replied_at > tuning.RELEASE_REPORT_SECONDS
        ):
            self._report()
        else:  # together with others that end now
            self._release_alarm.set(0)

    def on_settled(self) -> None:
        """Report settled claims. Thread-safe."""
        if self.scheduler.is_running:
            self._settle_alarm.set(tuning.SETTLE_REPORT_SECONDS)
        else:
            self.call.report()

    def _report(self) -> None:
        self._backoff.run_or_queue(self._report_now)

    def _report_now(self) -> None:
        """Report what ended. If slots are released and a process is free, also claim for them."""
        if self._slots.releases and self.scheduler.count_free() > 0:
            self._poll()
        elif self._slots.releases or self._claims.settled:
            self.call.report()

    def run(self) -> None:
        """Poll, or queue to poll after the calls to a slow server."""
        self._backoff.run_or_queue(self._poll_if_free)

    def _poll_if_free(self) -> None:
        if self.scheduler.count_free() > 0:
            self._poll()
        else:  # the processes were taken during a rest
            self.poll_in(0)

    def _poll(self) -> None:
        """Claim the tasks that are due, for the free processes."""
        for task in self.revoked.withdraw():
            self.dispatcher.dispatch(task)
        with self.scheduler.claiming:
            reply = self.call.claim(self._capacity)
        if reply is None:
            # At the end of an outage, `poll_in(0)` follows.
            lost = self.outage.is_on
            self.poll_in(tuning.RETRY_SECONDS if lost else tuning.MIN_WAKEUP_INTERVAL_SECONDS)
            return
        self.more_are_due = bool(reply.tasks) and not reply.wait
        for task in reply.tasks:
            self.dispatcher.dispatch(task)
        if reply.dead_worker and self._had_time_to_renew():
            self._claims.reclaim(reply.dead_worker)
        self.wakeup.listen()
        self.poll_in(reply.wait)

    def _capacity(self) -> Capacity:
        contended = self.scheduler.pool.is_contended()
        soon_free = 0 if contended else self._count_soon_free()
        return Capacity(self.scheduler.count_free(), soon_free, contended)

    def _count_soon_free(self) -> int:
        """Return how many processes will be free in a moment, if claims start as fast as recently.

        A task that is claimed for one of them starts within 20 ms, or goes back to its line.
        """
        starts = self._claims.recent_starts()
        return int(starts * tuning.SOON_FREE_SECONDS / tuning.BOOKING_HORIZON_SECONDS)

    def _had_time_to_renew(self) -> bool:
        """Whether a worker that lives would have renewed its lease after an outage.

        A worker that has just begun does not know whether there was one. If this worker stood
        still, others may have done so, too: their machine was suspended.
        """
        now, grace = time.monotonic(), tuning.RECLAIM_GRACE_SECONDS
        since_return = now - max(self.outage.ended, self.call.returned_at)
        return since_return > grace and now - self._began > min(grace, self.call.lease)
