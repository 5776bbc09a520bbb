"""The gate: may this task run now? If not, it joins its line and leaves the worker.

A decision is the :class:`Status` that the task has from then on (``PARKED`` once its message is
acknowledged); only ``ADMITTED`` lets it run.
Laws at stake here: *never over* (a start is booked only with its units taken: by the server, or
during an outage, when there are no lines, from this worker's share), *never lost* (an error leaves
the message unacknowledged) and *no surprise* (revoked and expired tasks never reach the decision,
see ``request.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle import signals
from celery_throttle.errors import StoreUnavailableError, UnknownLimitError
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.step_out import Item
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import DecisionBatch
from celery_throttle.worker.admission.booking import Booking
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.gates import gate_of
from celery_throttle.worker.admission.lookups import KeyLookups
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.recovery import Recovery
from celery_throttle.worker.admission.refunds import Refunds
from celery_throttle.worker.admission.request_limits import (
    NotComputedError,
    has_limits,
    requirement_of,
    set_requested,
)
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.announcements import announce_end_of_wait, end_surplus
from celery_throttle.worker.hooks.pool import WorkerPool
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import (
    WAITING_HERE,
    Status,
    TaskState,
    ending,
    may_be_revoked,
)
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import SharedCallError, WaitingPolicy
from celery_throttle.worker.waiting.stepped_out import SteppedOutRequests

logger = get_logger(__name__)

#: The task no longer waits in this worker.
_LEAVING = (Status.ADMITTED, Status.PARKED, Status.ENDED)


@dataclass(eq=False, repr=False)
class Gate:
    """Decides about the requests of one worker whose limits are in one shard."""

    throttle: AppLimits
    waiting: WaitingPolicy
    slots: TaskSlots
    outage: OutageMode
    delayed: DelayedTasks
    calls: LoopCalls
    pool: WorkerPool
    outcomes: FanOutOutcomes
    timers: Timers
    functions: FunctionCalls
    lookups: KeyLookups
    #: Brings a request to the gate once more.
    readmit: Callable[[Any], None]
    #: Reports a start that did not pass the gate, by the name of the task.
    report_ungated: Callable[..., None]
    #: Remembers the shards of limits; returns whether that was unknown.
    learn: Callable[[Mapping[str, str]], bool]
    #: Adopts the rules in force on the server; returns whether the app has a rules file.
    refresh_rules: Callable[[], bool]
    #: Held while a gate of this worker decides: without an event loop, requests come here in
    #: several threads or greenlets.
    deciding: AbstractContextManager[Any] = field(default_factory=threading.RLock)
    stepped_out: SteppedOutRequests = field(default_factory=SteppedOutRequests)

    def __post_init__(self) -> None:
        self._refunds = Refunds(self.throttle, self.calls, self.timers, self.deciding)
        self._quota = Quota(
            self.throttle,
            self.calls,
            self._refunds,
            self._queued_requests,
            self.functions.limits_of,
            self.lookups.are_known,
            self.deciding,
        )
        self._deferred = DecisionBatch(self._decide_batch, self.timers, self.calls)
        self._booking = Booking(
            self.throttle,
            self.waiting,
            self.outage,
            self.delayed,
            self.calls,
            self._quota,
            defer=self._deferred.add,
            conclude_late=self._conclude_all,
            resume=self._resume,
            idle_requests=self.pool.idle_requests,
            deciding=self.deciding,
        )
        self.recovery = Recovery(
            self.throttle,
            self.outage,
            self.delayed,
            self.learn,
            self.refresh_rules,
            is_here=lambda request: gate_of(request) is self,
        )
        self.calls.on_late = self._keep_deferred
        self._stopped = False

    # The main path.

    def admit(self, request: Any) -> Status:
        """Decide about a request for which a process is free; it may run if it is ``ADMITTED``.

        It returns ``ADMITTED`` once for each start of a task, with limits or without.
        """
        status = self._decide(request, self._decide_arrived)
        if status is Status.ADMITTED:
            wait = request.throttle_state.end_wait()
            waited = 0.0 if wait is None else wait.seconds
            if wait is not None:
                announce_end_of_wait(request, wait)
            if signals.task_admitted.receivers and has_limits(self.throttle, request):
                signals.task_admitted.send(sender=request.task, request=request, wait=waited)
        return status

    def _decide(self, request: Any, decide: Callable[[Any], Status]) -> Status:
        """Decide, and let the pool know whether the request waits in this worker."""
        idle_requests = self.pool.idle_requests
        with self.deciding:
            if idle_requests:
                idle_requests.discard(request)
            status = decide(request)
            if status in WAITING_HERE and request in state.reserved_requests:
                idle_requests.add(request)
            if self.stepped_out and status in _LEAVING:
                self.stepped_out.discard(request)
        return status

    def _decide_arrived(self, request: Any) -> Status:
        """Start a request that has its units already; decide about any other."""
        task: TaskState = request.throttle_state
        status = task.arrive_at_gate()
        if status is Status.BOOKED or self.slots.holds(request):
            return self._admit_booked(request)
        if task.start is not None:
            self._refunds.end(task)  # first: the decision may need them
        claim = task.claim
        if claim is not None and not claim.start():
            state.task_ready(request)
            return task.end()
        if claim is not None and status is Status.CLAIMED:
            if self.lookups.by_name and claim.wait is not None:
                self.lookups.note(claim.wait.ref)
            self.slots.hold(request, self.slots.holder(claim.token, request.id), claim.slots)
            return task.move(Status.ADMITTED)
        if claim is not None and claim.is_surplus:
            return self.recovery.run(request, end_surplus)
        return self.recovery.run(request, self._decide_received)

    def _decide_received(self, request: Any) -> Status:
        """Decide about a request without units."""
        task: TaskState = request.throttle_state
        try:
            limits = self.functions.limits_of(request, self.delayed.end)
        except NotComputedError:
            return self.delayed.keep(request)
        if limits is None:
            return task.move(Status.ADMITTED)
        requirement = requirement_of(limits, request)
        looks_up = self.lookups.by_name and not self.outage.is_on
        if looks_up and self.lookups.must_wait(request, requirement):
            return self.delayed.add(request, tuning.RETRY_SECONDS)
        if not self.pool.enter(request):
            return task.move(Status.QUEUED)
        if self.outage.is_on:
            status = self._booking.book_in_outage(request, limits, requirement)
        elif self.calls.must_wait():
            if self.calls.is_late and not request.acknowledged:
                status = self._keep(request)
            else:
                cached = self._booking.book_cached(request, limits, requirement)
                status = cached or self._deferred.add(request)
        else:
            status = self._booking.book(request, limits, requirement)
        return self._admit_booked(request) if status is Status.BOOKED else status

    def _admit_booked(self, request: Any) -> Status:
        """Start a request that has its units, at its time."""
        task: TaskState = request.throttle_state
        seconds = 0.0 if task.start is None else task.start.at - time.monotonic()
        if seconds > tuning.WAIT_IN_PLACE_SECONDS:
            self._refunds.watch(task.start)
            self.timers.call_after(seconds, self.readmit, (request,))
            return task.status
        if seconds > 0:
            time.sleep(seconds)
        return task.start_booked()

    # Late calls. Requests that wait for the end of one hold no prefetch slot meanwhile.

    def _keep(self, request: Any) -> Status:
        """Let a request wait for the end of a late call, then bring it to the gate once more."""
        status = self.delayed.keep(request)
        self.delayed.end_soon([request])
        return status

    def _keep_deferred(self) -> None:
        for request in self._deferred.take_unacknowledged():
            self._keep(request)

    # Several requests in one round trip.

    def _decide_batch(self, requests: Sequence[Any]) -> None:
        """Decide about several requests in one round trip; without a reply one by one."""
        requests = [request for request in requests if not self._must_leave(request)]
        for request in requests:
            request.throttle_state.arrive_at_gate()
        if self._stopped:
            for request in requests:
                self._let_go(request)
            return
        results: Sequence[Status | Exception | None] = [None] * len(requests)
        if not self.outage.is_on:
            with self.deciding:
                free = self.pool.count_free()
                may_run = [index < free for index in range(len(requests))]
                results = self._booking.book_or_park_round(requests, may_run)
        self._conclude_all(requests, results)

    def _conclude_all(
        self, requests: Sequence[Any], results: Sequence[Status | Exception | None]
    ) -> None:
        """Do what follows the results of some requests; decide once more if one has no reply."""
        for request, result in zip(requests, results, strict=True):
            status = self._decide(request, partial(self._conclude, result))
            if status is Status.BOOKED:
                self._refunds.watch(request.throttle_state.start)
                if not self._lets_go(request):
                    self._readmit_booked(request)
            elif status is Status.RECEIVED and not self._lets_go(request):
                self.readmit(request)

    def _readmit_booked(self, request: Any) -> None:
        """Bring a booked request to the gate, unless another task has taken its process.

        That may be during a call: a request that waits for a late reply has no process.
        """
        if self.pool.has_room():
            self.readmit(request)
        else:
            self._unbook(request)
            self._decide(request, self._deferred.add)

    def _resume(self, request: Any, start: Start | Exception | None) -> None:
        """Decide about a request again: the late call for it has ended."""
        task: TaskState = request.throttle_state
        with self.deciding:
            self.delayed.remove(request)
            task.arrive_at_gate()
            result = task.book(start) if isinstance(start, Start) else start
        if result is not None:
            self._conclude_all([request], [result])
        elif not self._lets_go(request):
            self.readmit(request)

    def _lets_go(self, request: Any) -> bool:
        """Let go of a request if the worker stops; return whether it does."""
        if self._stopped and request in self.stepped_out:  # nobody else has it
            if request.throttle_state.status is Status.BOOKED:
                self._unbook(request)
            self._decide_batch([request])
        return self._stopped

    def _unbook(self, request: Any) -> None:
        """Give back the units of a booked request, which has no process."""
        request.throttle_state.move(Status.RECEIVED)
        self.slots.end(request)
        self._refunds.end(request.throttle_state)

    def is_revoked(self, request: Any) -> bool:
        """Return whether a request was revoked or has expired; then end it.

        If its end cannot be stored, it comes again later.
        """
        if not may_be_revoked(request):
            return False
        try:
            with ending(request):
                revoked = request.revoked()
        except Exception as error:  # noqa: BLE001  # of a result backend, say
            self._decide(request, partial(self.recovery.delay, error=error))
            return True
        if revoked:
            self.end(request)
        return bool(revoked)

    def _must_leave(self, request: Any) -> bool:
        """Return whether a request was dropped or revoked meanwhile; then end it."""
        if self.stepped_out.is_dropped(request):
            self.end(request)
            return True
        return self.is_revoked(request)

    def _conclude(self, result: Status | Exception | None, request: Any) -> Status:
        """Return the status of one request of a batch; decide once more if it has no reply."""
        again = (StoreUnavailableError, SharedCallError, UnknownLimitError)
        if result is None or isinstance(result, again):
            return self.recovery.run(request, self._decide_alone)
        if isinstance(result, Exception):
            return self.recovery.fail_or_delay(request, result)
        return result

    def _decide_alone(self, request: Any) -> Status:
        """Decide about one request of a batch, without the others.

        During an outage it stays ``RECEIVED``: without a process it takes no units of the share.
        """
        task: TaskState = request.throttle_state
        if self.outage.is_on:
            return task.status
        return self._booking.book_or_park(request, may_run=self.pool.has_room())

    def _let_go(self, request: Any) -> None:
        """Let a task go that nobody else has, while the worker stops: to its line or its queue."""
        park = partial(self._booking.book_or_park, may_run=False)
        status = self._decide(request, partial(self.recovery.run, decide=park))
        if status is Status.BOOKED:  # its limits were removed
            self.delayed.add(request, 0.0)

    def _let_go_stepped_out(self, request: Any) -> None:
        """Let go of a stepped-out request, wherever it waits in this worker."""
        # If it is on its way here, `step_out` stops once more. A late reply may have let it leave,
        # and another thread concludes that.
        is_in_transit = request.throttle_state.status in (Status.STEPPED_OUT, *_LEAVING)
        if request in self.stepped_out and not is_in_transit:
            self.delayed.remove(request)
            self._lets_go(request)
            self.stepped_out.discard(request)

    def _queued_requests(self) -> Iterable[Any]:
        """Return the requests of this gate that wait for a process, the next first."""
        return (each for each in self.pool.queued_requests() if gate_of(each) in (self, None))

    # The ends of tasks, and of the worker.

    def end(self, request: Any) -> None:
        """Record that a task has ended, in whatever way, or was not started after all."""
        task: TaskState = request.throttle_state
        task.end()
        self.stepped_out.discard(request)
        if task.claim is not None:
            task.claim.end()
        self.slots.end(request)
        if task.start is not None:
            self._refunds.end(task)
        self.report_outcome(request)
        self.pool.on_exit()

    def report_outcome(self, request: Any) -> None:
        """Report the outcome of a task, once, if it has ended for good.

        Celery no longer counts the task, and now sends its event, or stores its result: a greenlet
        that counts free processes meanwhile would find one too many if the task counted as idle.
        """
        if self.pool.idle_requests:
            self.pool.idle_requests.discard(request)
        task: TaskState = request.throttle_state
        if task.outcome and not task.comes_again:
            self.outcomes.record(request.request_dict, task.outcome)
        task.outcome = ""

    def step_out(self, request: Any, requested: Sequence[Item]) -> None:
        """Let a task wait for limits that refused in its body; then it runs once more.

        Its message may be acknowledged already: from here on the task is in this worker only.
        """
        task: TaskState = request.throttle_state
        state.task_ready(request)
        if task.claim is not None:
            task.claim.end()
        self.slots.end(request)
        task.step_out()
        if request.acknowledged:
            self.stepped_out.add(request)
        # They belong to that run: a revoke would terminate the run that has its process now.
        request.time_start = request.worker_pid = request._apply_result = None  # noqa: SLF001  # Celery resets it nowhere
        state.task_reserved(request)
        self.pool.idle_requests.add(request)
        self.pool.on_exit()
        set_requested(request, requested)
        task.leave_shard()
        gate = gate_of(request) or self
        gate._deferred.add(request)  # noqa: SLF001  # of this class
        if gate._stopped:  # noqa: SLF001
            gate.stop()

    def stop(self) -> None:
        """Let go of all tasks that the pool does not have. Thread-safe; it may be called again."""
        with self.deciding:
            self._stopped = True
            requests = [each for each in list(self.stepped_out) if gate_of(each) in (self, None)]
            for request in requests:
                state.task_reserved(request)  # Celery may have dropped it
            self.calls.close()
            for request in requests:
                self._let_go_stepped_out(request)
            self.delayed.forget()
            self._refunds.give_back()
            for request in list(self.pool.idle_requests):
                claim = request.throttle_state.claim
                if claim is not None:
                    claim.requeue()
