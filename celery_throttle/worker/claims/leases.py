"""Keeps the leases of one worker: that of its claims, and those of its tasks' slots.

Law at stake here: *never lost*, and never twice (a task whose lease runs out goes to another
worker).
"""

from __future__ import annotations

import threading
import time

from celery.worker import state

from celery_throttle.tasks.messages.packing import is_claimed
from celery_throttle.worker import tuning
from celery_throttle.worker.claims.call import ClaimCall
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.slots import TaskSlots


class WorkerLeases:
    """Renews the leases every third of their length.

    The worker's timer calls :meth:`renew`. A thread does so when the timer stands still: while a
    task runs in the thread of the loop (solo), while the connection to the broker is lost, and
    while the worker shuts down but tasks still run. The thread also reports, within two seconds,
    that such a task has started: it would run again if this worker died.
    """

    def __init__(self, call: ClaimCall) -> None:
        #: Seconds from one renewal to the next.
        self.interval = call.lease / 3
        self._claims = call.claims
        self._slots = call.slots
        self._call = call
        self._thread: threading.Thread | None = None
        self._renewed_at = 0.0
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        self._renewed_at = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="throttle-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread as soon as nothing is held any more."""
        self._is_stopping = True

    def renew(self) -> None:
        """Renew the lease of the claims, if no claim call just did, and those of the slots."""
        if time.monotonic() - self._call.replied_at > tuning.LEASE_SILENCE_SECONDS:
            self._call.report()
        self._renewed_at = time.monotonic()
        self._call.renew_slots()

    def _run(self) -> None:
        while not self._is_stopping or len(self._claims) or len(self._slots):
            time.sleep(min(tuning.LEASE_SILENCE_SECONDS, self.interval / 4))
            now = time.monotonic()
            if now - self._renewed_at > self.interval * 1.5:
                self.renew()
            elif (
                self._claims.settled and now - self._call.replied_at > tuning.LEASE_SILENCE_SECONDS
            ):
                self._call.report()


def release_dropped(claims: Claims, slots: TaskSlots) -> None:
    """Requeue the claims and release the slots of tasks that Celery has dropped.

    When Celery loses the broker, it drops tasks that no process has begun, and cancels others if
    it is configured to.
    """
    running = list(state.active_requests)
    kept = {request.message.claim for request in running if is_claimed(request.message)}
    claims.requeue(set(claims.started()) - kept)
    for request in set(slots.requests()) - set(running):
        slots.end(request)
