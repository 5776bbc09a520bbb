"""The gate: may this task run now? If not, it joins its line and leaves the worker.

A decision is the :class:`Status` that the task has from then on; only ``ADMITTED`` lets it run.
Laws at stake here: *never over* (a task passes only with its units taken), *never lost* (an error
leaves the message unacknowledged) and *no surprise* (revoked and expired tasks never reach the
decision, see ``request.py``). During an outage there are no lines, and the worker decides alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from celery.worker import state

from celery_throttle import signals
from celery_throttle.errors import (
    StoreError,
    StoreUnavailableError,
    UnknownLimitError,
)
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.step_out import Item
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import CallLater, DecisionBatch, QuotaBatch
from celery_throttle.worker.admission.booking import Booking
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.recovery import Recovery
from celery_throttle.worker.admission.requested_limits import (
    has_limits,
    limits_of,
    requirement_of,
    set_requested,
)
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.failure import fail
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.announcements import announce_admission, announce_release
from celery_throttle.worker.hooks.pool import WorkerPool
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import WaitingPolicy


@dataclass(eq=False, repr=False)
class Gate:
    """Decides about the requests of one worker whose limits are in one shard."""

    throttle: AppLimits
    waiting: WaitingPolicy
    slots: TaskSlots
    outage: OutageMode
    delayed: DelayedTasks
    backoff: Backoff
    pool: WorkerPool
    outcomes: FanOutOutcomes
    #: Brings a request to the gate once more.
    readmit: Callable[[Any], None]
    call_later: CallLater
    #: Calls a function in the worker's loop, from any thread.
    call_soon: Callable[..., Any]
    #: Reports a start that did not pass the gate, by the name of the task.
    report_ungated: Callable[..., None]
    #: Adopts the rules in force on the server; returns whether the app has a rules file.
    refresh_rules: Callable[[], bool]
    #: Held while a gate of this worker decides: without an event loop, requests come here in
    #: several threads or greenlets.
    deciding: AbstractContextManager[Any] = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        throttle, backoff = self.throttle, self.backoff
        self._recovery = Recovery(throttle.store, self.outage, self.delayed, self.refresh_rules)
        self._deferred = DecisionBatch(self._decide_batch, self.call_later, backoff, self.call_soon)
        gathered = QuotaBatch(self.readmit, self.call_later, self._queued_requests)
        self._booking = Booking(
            throttle,
            self.waiting,
            self.outage,
            self.delayed,
            backoff,
            Quota(throttle, backoff, lambda: chain(gathered, self._queued_requests())),
            gathered,
        )
        self._stopped = False
        #: Whether the worker has no other gate, so that all its requests are this one's.
        self.is_only = False

    # The main path.

    def admit(self, request: Any) -> Status:
        """Decide about a request for which a process is free; it may run if it is ``ADMITTED``.

        It returns ``ADMITTED`` once for each start of a task, with limits or without.
        """
        status = self._decide(request, self._decide_arrived)
        if status is Status.ADMITTED:
            waited = announce_release(request)
            if signals.task_admitted.receivers and has_limits(self.throttle, request):
                announce_admission(request, waited)
        return status

    def _decide(self, request: Any, decide: Callable[[Any], Status]) -> Status:
        """Decide, and let the pool know whether the request waits in this worker."""
        idle_requests = self.pool.idle_requests
        with self.deciding:
            if idle_requests:
                idle_requests.discard(request)
            status = decide(request)
            if status.is_waiting_here and request in state.reserved_requests:
                idle_requests.add(request)
        return status

    def _decide_arrived(self, request: Any) -> Status:
        """Start a request that has its units already; decide about any other."""
        task: TaskState = request.throttle_state
        status = task.arrive_at_gate()
        if status is Status.BOOKED or self.slots.holds(request):
            return self._start_booked(request)
        claim = task.claim
        if claim is not None and not claim.start():
            state.task_ready(request)
            return task.end()
        if claim is not None and status is Status.CLAIMED:
            self.slots.hold(request, self.slots.holder(claim.token), claim.slots)
            return task.admit()
        return self._recovery.run(request, self._decide_received)

    def _decide_received(self, request: Any) -> Status:
        """Decide about a request without units."""
        task: TaskState = request.throttle_state
        limits = limits_of(self.throttle, request)
        if limits is None:
            return task.admit()
        requirement = requirement_of(limits, request)
        if not self.pool.enter(request):
            return task.queue()
        if self.outage.is_on:
            status = self._booking.book_in_outage(request, limits, requirement)
        elif (limits.slots and not self.pool.has_room()) or self.backoff.is_resting():
            status = self._deferred.add(request)
        else:
            status = self._booking.book(request, limits, requirement)
        return self._start_booked(request) if status is Status.BOOKED else status

    def _start_booked(self, request: Any) -> Status:
        """Start a request that has its units, at its time."""
        task: TaskState = request.throttle_state
        seconds = task.seconds_to_start()
        if seconds > tuning.WAIT_IN_PLACE_SECONDS:
            self.call_later(seconds, self.readmit, (request,))
            return task.status
        if seconds > 0:
            time.sleep(seconds)
        return task.admit()

    # Several requests in one round trip.

    def _decide_batch(self, requests: Sequence[Any]) -> None:
        """Decide about several requests in one round trip; without a reply one by one."""
        requests = [request for request in requests if not self._is_revoked(request)]
        for request in requests:
            request.throttle_state.arrive_at_gate()
        if self._stopped:
            for request in requests:
                self._park_at_stop(request)
            return
        results: Sequence[Status | Exception | None] = [None] * len(requests)
        if not self.outage.is_on:
            with self.deciding:
                results = self._booking.book_or_park_all(requests, self.pool.count_free())
        for request, result in zip(requests, results, strict=True):
            status = self._decide(request, partial(self._conclude, result))
            if status is Status.BOOKED:
                self.readmit(request)

    def _is_revoked(self, request: Any) -> bool:
        """Return whether a request was revoked, expired or was dropped; then end it."""
        try:
            revoked = request not in state.reserved_requests or request.revoked()
        except Exception as error:  # noqa: BLE001  # of a result backend, say
            self._recovery.delay(request, error)
            return True
        if revoked:
            self.end(request)
        return bool(revoked)

    def _conclude(self, result: Status | Exception | None, request: Any) -> Status:
        """Return the status of one request of a batch; decide once more if it has no reply."""
        if result is None or isinstance(result, (StoreUnavailableError, UnknownLimitError)):
            return self._recovery.run(request, self._decide_alone)
        if isinstance(result, Exception):
            return self._recovery.fail_or_delay(request, result)
        return result

    def _decide_alone(self, request: Any) -> Status:
        """Decide about one request of a batch, without the others."""
        limits = limits_of(self.throttle, request)
        if limits is None:
            task: TaskState = request.throttle_state
            return task.book(0.0)
        requirement = requirement_of(limits, request)
        if self.outage.is_on:
            return self._booking.book_in_outage(request, limits, requirement)
        may_run = self.pool.has_room()
        return self._booking.book_or_park(request, limits, requirement, may_run=may_run)

    def _park_at_stop(self, request: Any) -> None:
        """Let a task go that nobody else has, while the worker stops: to its line or its queue."""
        try:
            limits = limits_of(self.throttle, request)
            if limits is not None:
                requirement = requirement_of(limits, request)
                self._booking.book_or_park(request, limits, requirement, may_run=False)
            elif not self.delayed.send_back(request):
                fail(request, StoreUnavailableError("its queue cannot be reached"))
        except StoreError as error:
            if not self.delayed.send_back(request):
                fail(request, error)
        except Exception as error:  # noqa: BLE001  # of a result backend, say
            self._recovery.fail_or_delay(request, error)

    def _queued_requests(self) -> Iterable[Any]:
        """Return the requests of this gate that wait for a process, the next first."""
        queued = self.pool.queued_requests()
        return (
            queued if self.is_only else (each for each in queued if gate_of(each) in (self, None))
        )

    # The ends of tasks, and of the worker.

    def end(self, request: Any) -> None:
        """Record that a task has ended, in whatever way, or was not started after all."""
        request.throttle_state.end()
        self.slots.end(request)
        if self.pool.idle_requests:
            self.pool.idle_requests.discard(request)
        self.pool.on_exit()

    def report_outcome(self, request: Any) -> None:
        """Report the outcome of a task, once, if it has ended for good."""
        task = request.throttle_state
        if task.outcome and not task.comes_again:
            self.outcomes.record(request.request_dict, task.outcome)
        task.outcome = ""

    def end_in_strategy(self, request: Any, outcome: str) -> None:
        """Record the end of an admitted task that its own strategy has run.

        Its message is acknowledged or rejected: that is all that this worker sees.
        """
        task = request.throttle_state
        if not task.outcome:  # else it was revoked
            task.outcome = outcome
            early = self.slots.holds(request) and not request.task.acks_late
            self.report_ungated(str(request.task.name), releases_early=early)
        self.end(request)
        self.report_outcome(request)

    def step_out(self, request: Any, requested: Sequence[Item]) -> None:
        """Let a task wait for limits that refused in its body; then it runs once more.

        Its message may be acknowledged already: from here on the task is in this worker only.
        """
        task: TaskState = request.throttle_state
        state.task_ready(request)
        self.slots.end(request)
        task.step_out()
        # They belong to that run: a revoke would terminate the run that has its process now.
        request.time_start = request.worker_pid = request._apply_result = None  # noqa: SLF001  # Celery resets it nowhere
        state.task_reserved(request)
        self.pool.idle_requests.add(request)
        self.pool.on_exit()
        set_requested(request, requested)
        self._deferred.add(request)
        if self._stopped:
            self._deferred.decide_all()

    def delay(self, request: Any, error: Exception) -> None:
        """Bring a request to the gate again later, after an error that is not the server's."""
        self._recovery.delay(request, error)

    def leave_outage(self) -> None:
        """The server decides again: tasks that wait in this worker may join their lines."""
        self.delayed.readmit_all()

    def stats(self) -> dict[str, int]:
        """Return the number of tasks that wait in this worker, unacknowledged."""
        return {"postponed": len(self.delayed)}

    def stop(self) -> None:
        """Let go of all tasks that the pool does not have."""
        self._stopped = True
        self._deferred.decide_all()
        self.delayed.forget()
        for request in list(self.pool.idle_requests):
            claim = request.throttle_state.claim
            if claim is not None:
                claim.requeue()


class Gates(NamedTuple):
    """The gates of a worker, one for each shard."""

    only: Gate | None  #: of a worker with one shard; a look-up for each request would cost time
    find: Callable[[Any], Gate]  #: returns the gate of a request


def attach_gates(app: Any, gates: Sequence[Gate], find: Callable[[Any], Gate]) -> None:
    """Let the requests of an app pass the gates of this worker, each that of its shard."""
    only = gates[0] if len(gates) == 1 else None
    if only is not None:
        only.is_only = True
    app.throttle_gates = Gates(only, find)


def gate_of(request: Any) -> Gate | None:
    """Return the gate of a request; None if no worker runs its app, or the app has no limits."""
    gates: Gates | None = getattr(request.app, "throttle_gates", None)
    return None if gates is None else gates.only or gates.find(request)
