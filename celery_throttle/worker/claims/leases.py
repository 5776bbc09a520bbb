"""Keeps the leases of one worker: that of its claims, and those of the slots of its tasks.

Law at stake here: *never lost*, and never twice (a task whose lease runs out is somebody else's).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from celery.worker import state

if TYPE_CHECKING:
    from celery_throttle.worker.claims.call import Claiming
    from celery_throttle.worker.claims.claims import Claims
    from celery_throttle.worker.claims.slots import TaskSlots

#: Seconds without a call of this worker after which its claims are renewed by one of their own.
SILENT = 1.0


class Leases:
    """Renewed by the worker's timer; and by a thread, where that stands still.

    That is while a task runs in the thread of the loop (solo), while the connection to the broker
    is lost, and while the worker shuts down but tasks still run.

    Args:
        lease: seconds.
        claims: what this worker holds.
        slots: the slots of the tasks that run.
        claiming: makes the calls.
    """

    def __init__(self, lease: float, claims: Claims, slots: TaskSlots, claiming: Claiming) -> None:
        self._lease = lease
        self._claims = claims
        self._slots = slots
        self._claiming = claiming
        self._entry: Any = None
        self._thread: threading.Thread | None = None
        self._renewed = 0.0
        self._ending = False

    def start(self, timer: Any) -> None:
        """Begin, or go on with a new timer."""
        self._renewed = time.monotonic()
        self._entry = timer.call_repeatedly(self._lease / 3, self._renew)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="throttle-lease", daemon=True)
            self._thread.start()

    def stop(self, timer: Any, *, for_good: bool) -> None:
        """The timer is to be used no more. What is held is kept, for good until it has ended."""
        if self._entry is not None:
            timer.cancel(self._entry)
        self._ending = for_good

    def _renew(self) -> None:
        if time.monotonic() - self._claiming.heard > SILENT:
            self._claiming.tell()
        self._renewed = time.monotonic()
        self._claiming.renew_slots()

    def _keep(self) -> None:
        lease = self._lease
        while not self._ending or len(self._claims) or len(self._slots):
            time.sleep(lease / 6)
            if time.monotonic() - self._renewed > lease / 2:
                self._renew()


def let_go_of_dropped(claims: Claims, slots: TaskSlots) -> None:
    """Give back what Celery has dropped.

    When it loses the broker, it drops tasks that no process has begun, and cancels others if it is
    told to.
    """
    running = list(state.active_requests)
    kept = {getattr(request.message, "claim", None) for request in running}
    claims.give_back(set(claims.started()) - kept)
    for request in set(slots.requests()) - set(running):
        slots.end(request)
