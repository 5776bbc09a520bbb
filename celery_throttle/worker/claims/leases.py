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


class WorkerLeases:
    """Renews the leases every third of their length, in a thread.

    The loop of the worker may stand still: while a task runs in its thread (solo), while the
    connection to the broker is lost, and while the worker shuts down but tasks still run. The
    thread also reports, within two seconds, that such a task has started: it would run again if
    this worker died.
    """

    def __init__(self, call: ClaimCall) -> None:
        self._call = call
        self._thread: threading.Thread | None = None
        self._renewed_at = 0.0
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not earlier: the pool forks before."""
        if self._thread is None:
            self._renewed_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="throttle-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread as soon as nothing is held any more."""
        self._is_stopping = True

    def renew(self) -> None:
        """Renew the lease of the claims, if no claim call just did, and those of the slots."""
        if self._is_silent():
            self._call.report()
        self._renewed_at = time.monotonic()
        self._call.renew_slots()

    def _is_silent(self) -> bool:
        return time.monotonic() - self._call.replied_at > tuning.LEASE_SILENCE_SECONDS

    def _run(self) -> None:
        call = self._call
        interval = call.lease / 3
        while not self._is_stopping or len(call.claims) or len(call.slots):
            time.sleep(min(tuning.LEASE_SILENCE_SECONDS, interval / 4))
            if time.monotonic() - self._renewed_at > interval:
                self.renew()
            elif call.claims.settled and self._is_silent():
                call.report()

    def release_dropped(self) -> None:
        """Requeue the claims and release the slots of tasks that Celery has dropped.

        When Celery loses the broker, it drops tasks that no process has begun, and cancels others
        if it is configured to.
        """
        running = list(state.active_requests)
        kept = {request.message.claim for request in running if is_claimed(request.message)}
        claims, slots = self._call.claims, self._call.slots
        claims.requeue(set(claims.started()) - kept)
        for request in set(slots.requests()) - set(running):
            slots.end(request)
