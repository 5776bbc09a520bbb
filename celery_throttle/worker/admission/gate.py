"""The gate: may this task run now? If not, it joins its line and leaves the worker.

Laws at stake here: *never over* (a task passes only with its units taken), *never lost* (an error
leaves the message unacknowledged) and *no surprise* (revoked and expired tasks never reach the
decision, see ``request.py``). While the server is lost there are no lines, and the worker decides
alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery.worker import state

from celery_throttle import signals
from celery_throttle.errors import StoreError, StoreUnavailableError, ThrottleError
from celery_throttle.tasks.task import TaskLimits
from celery_throttle.worker.admission import requested_limits
from celery_throttle.worker.admission.batching import Gathered, Later, SteppedAside
from celery_throttle.worker.admission.pipeline import Attempt, Attempts
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.admission.recovery import Trying, fail

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.limits.requirement import Need
    from celery_throttle.worker.claims.slots import TaskSlots
    from celery_throttle.worker.fan_out_outcomes import Outcomes
    from celery_throttle.worker.health.backoff import Pace
    from celery_throttle.worker.health.outage import Outage
    from celery_throttle.worker.pool import Processes
    from celery_throttle.worker.waiting.delayed import Postponed
    from celery_throttle.worker.waiting.policy import Waiting

#: Seconds that are waited in place: less than putting the task off would cost.
BRIEF = 0.0003


class Gate:
    """Decides for the requests of one worker.

    Args:
        throttle: the app's limits.
        parking: what becomes of tasks that may not run now.
        slots: the slots of the tasks that run.
        outage: decides while the server is lost.
        postponed: where tasks wait then.
        pace: of calls to the server.
        processes: those of the pool.
        outcomes: of the tasks of fan-outs.
        bring: brings a request to the gate once more.
        later: see :data:`~celery_throttle.worker.admission.batching.Later`.
        soon: calls something in the worker's loop, from whatever thread.
    """

    def __init__(
        self,
        throttle: Throttle,
        parking: Waiting,
        slots: TaskSlots,
        *,
        outage: Outage,
        postponed: Postponed,
        pace: Pace,
        processes: Processes,
        outcomes: Outcomes,
        bring: Callable[[Any], None],
        later: Later,
        soon: Callable[..., Any],
    ) -> None:
        self.outcomes = outcomes
        self._throttle = throttle
        self._slots = slots
        self._parking = parking
        self._outage = outage
        self._postponed = postponed
        self._pace = pace
        self._bring = bring
        self._later = later
        self._gathered = Gathered(bring, later, processes.waiting)
        self._trying = Trying(throttle.store, outage, postponed)
        self._attempts = Attempts(throttle.store, pace)
        self._stepped_aside = SteppedAside(self._decide_together, later, pace, soon)
        self._processes = processes
        self._stopped = False
        self._quota = Quota(throttle, pace, lambda: chain(self._gathered, processes.waiting()))
        # Without an event loop, requests come here in several threads or greenlets.
        self._deciding = threading.RLock()

    def admit(self, request: Any) -> bool:
        """Whether the request may run now. If not, it is dealt with: parked, failed or put off."""
        return self._decided(request, self._admits)

    def _decided(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        """Decide, and keep account of those that are neither in the pool nor on their way there."""
        outside = self._processes.outside
        if outside:
            outside.discard(request)
        with self._deciding:
            admitted = decide(request)
            near = admitted or "throttle_slot" in request.__dict__ or request in self._gathered
        if not near and request in state.reserved_requests:
            outside.add(request)
        return admitted

    def _admits(self, request: Any) -> bool:
        if self._slots.holds(request):
            return True
        wait = _taken_before(request)
        if wait is not None:
            return self._start_in(wait, request)
        claim = getattr(request.message, "claim", None)
        if claim is not None and not claim.start():
            state.task_ready(request)
            return False
        if claim is not None and claim.admitted:
            self._slots.hold(request, claim.token, claim.slots)
            signals.task_released.send(sender=request.task, request=request, waited=claim.waited)
            return True
        return self._trying.decided(request, self._decide)

    def end(self, request: Any) -> None:
        """A task has ended, in whatever way, or was not started after all."""
        self._slots.end(request)
        if self._processes.outside:
            self._processes.outside.discard(request)
        self._processes.left()

    def meets(self, request: Any, limits: requested_limits.Items) -> None:
        """A task has met limits in its body: it waits for these as well, and then runs once more.

        Its message may be acknowledged already: from here on it is in this worker only.
        """
        claim = getattr(request.message, "claim", None)
        if claim is not None:  # what was taken with it was for the run that is over
            claim.admitted, claim.slots = False, ()
        # Of that run, or who revokes the task would end another one.
        request.time_start = request.worker_pid = request._apply_result = None  # noqa: SLF001  # Celery resets it nowhere
        state.task_reserved(request)
        self._processes.outside.add(request)
        try:
            requested_limits.add(self._throttle, request, limits)
        except ThrottleError as error:
            self._trying.failed(request, error)
            return
        self._stepped_aside.add(request)
        if self._stopped:
            self._stepped_aside.decide_all()

    def put_off(self, request: Any, error: Exception) -> None:
        """Something else failed than the server: a request comes again later."""
        self._trying.put_off(request, error)

    def is_back(self) -> None:
        """The server decides again: what waits here may join its line."""
        self._postponed.bring_all()

    def stats(self) -> dict[str, int]:
        """Tasks that wait in this worker, unacknowledged."""
        return {"postponed": len(self._postponed)}

    def stop(self) -> None:
        """Nothing comes here any more, save tasks that end."""
        self._stopped = True
        self._stepped_aside.decide_all()
        self._postponed.forget()
        for request in list(self._processes.outside):
            claim = getattr(request.message, "claim", None)
            if claim is not None:
                claim.give_back()

    def _decide(self, request: Any) -> bool:
        limits = requested_limits.limits_of(self._throttle, request)
        if limits is None:
            return True
        need = limits.need_of(request)
        if not self._processes.has_turn(request):
            return False
        if self._outage.is_on:
            return self._decide_alone(request, limits, need)
        if (limits.slots and not self._processes.has_place()) or self._pace.rests():
            self._stepped_aside.add(request)
            return False
        return self._take_or_park(request, limits, need)

    def _take_or_park(self, request: Any, limits: TaskLimits, need: Need) -> bool:
        # A slot is taken by a task that parks, not by a worker ahead of tasks.
        ahead = self._parking.in_lines and not limits.slots
        if ahead and not _may_be_parked(request):
            wait = self._quota.in_hand(need)
            if wait is None:
                if self._quota.is_better_gathered(need) and self._gathered.add(request):
                    return False
                wait = self._quota.take(need)
            if wait is not None:
                return self._start_in(wait, request)
        return self._attempts.alone(self._park(request, limits, need, may_run=True))

    def _park(
        self, request: Any, limits: TaskLimits, need: Need, *, may_run: bool
    ) -> Attempt[bool]:
        again = _may_be_parked(request)
        try:
            wait = yield from self._parking.park(
                request, limits, need, redelivered=again, may_run=may_run
            )
        except StoreError:
            request.throttle_doubt = True
            raise
        if wait is None:
            return False
        self._quota.is_free(need)
        return self._start_in(wait, request)

    def _decide_alone(self, request: Any, limits: TaskLimits, need: Need) -> bool:
        """While the server is lost. What may be in a line already must not run here as well."""
        waited = request.__dict__.pop("throttle_waited", False)
        parked = self._parking.in_lines and _may_be_parked(request)
        wait = None if parked else self._outage.wait(need, waited=waited)
        if wait == 0.0:
            self._parking.hold_slots(request, limits, need)
            return True
        request.throttle_waited = wait is not None
        self._postponed.put_off(request, wait)
        return False

    def _decide_together(self, requests: Sequence[Any]) -> None:
        """Those that stepped aside. What the server gave no answer for is decided by itself."""
        requests = [request for request in requests if not self._is_revoked(request)]
        if self._stopped:
            for request in requests:
                self._leave(request)
            return
        results: Sequence[bool | Exception | None] = [None] * len(requests)
        if not self._outage.is_on:
            results = self._park_together(requests)
        for request, result in zip(requests, results, strict=True):
            if self._decided(request, partial(self._conclude, result)):
                request.throttle_slot = time.monotonic()
                self._bring(request)

    def _leave(self, request: Any) -> None:
        """The pool takes nothing any more, and nobody else has it: to its line, or to its queue."""
        try:
            self._attempts.alone(self._attempt(request, may_run=False))
        except StoreError as error:
            if not self._postponed.send_back(request):
                fail(request, error)
        except Exception as error:  # noqa: BLE001  # of a result backend, say
            self._trying.failed(request, error)

    def _is_revoked(self, request: Any) -> bool:
        """Whether it was revoked, has expired or was dropped meanwhile. Then it is dealt with."""
        try:
            revoked = request not in state.reserved_requests or request.revoked()
        except Exception as error:  # noqa: BLE001  # of a result backend that is told
            self._trying.put_off(request, error)
            return True
        if revoked:
            self.end(request)
        return bool(revoked)

    def _park_together(self, requests: Sequence[Any]) -> list[bool | Exception]:
        free = self._processes.free()
        with self._deciding:
            return self._attempts.together(
                [
                    self._attempt(request, may_run=place < free)
                    for place, request in enumerate(requests)
                ]
            )

    def _attempt(self, request: Any, *, may_run: bool) -> Attempt[bool]:
        limits = requested_limits.limits_of(self._throttle, request)
        if limits is None:  # they were taken away meanwhile
            return True
        return (yield from self._park(request, limits, limits.need_of(request), may_run=may_run))

    def _conclude(self, result: bool | Exception | None, request: Any) -> bool:  # noqa: FBT001  # given, not asked for
        if result is None or isinstance(result, StoreUnavailableError):
            return self._trying.decided(request, self._decide_again)
        if isinstance(result, Exception):
            self._trying.failed(request, result)
            return False
        return result

    def _decide_again(self, request: Any) -> bool:
        limits = requested_limits.limits_of(self._throttle, request)
        if limits is None or not self._outage.is_on:
            attempt = self._attempt(request, may_run=self._processes.has_place())
            return self._attempts.alone(attempt)
        return self._decide_alone(request, limits, limits.need_of(request))

    def _start_in(self, wait: float, request: Any) -> bool:
        """Its quota is taken, for a slot at most 20 ms away."""
        if wait > BRIEF:
            request.throttle_slot = time.monotonic() + wait
            self._later(wait, self._bring, (request,))
            return False
        if wait > 0:
            time.sleep(wait)
        return True


def _may_be_parked(request: Any) -> bool:
    """Whether a task may be in a line already, so that only parking can tell if it is new.

    The broker delivered it before; or nobody knows if the call was carried out that parked it. What
    comes from a line itself is no second delivery, whatever its headers say.
    """
    if "throttle_doubt" in request.__dict__:
        return True
    again = request.delivery_info.get("redelivered")
    return bool(again) and not hasattr(request.message, "claim")


def _taken_before(request: Any) -> float | None:
    """Seconds until the slot that was taken for a request, if it is good still."""
    slot: float | None = request.__dict__.pop("throttle_slot", None)
    if slot is None:
        return None
    now = time.monotonic()
    return max(0.0, slot - now) if now <= slot + HORIZON else None
