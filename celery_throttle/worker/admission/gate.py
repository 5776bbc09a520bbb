"""The gate: may this task run now? If not, it joins its line and leaves the worker.

Laws at stake here: *never over* (a task passes only with its units taken), *never lost* (an error
leaves the message unacknowledged) and *no surprise* (revoked and expired tasks never reach the
decision, see ``request.py``). During an outage there are no lines, and the worker decides alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from celery.worker import state

from celery_throttle import signals
from celery_throttle.errors import (
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.plan import Attempt
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.context import Item
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import Batch, CallLater, NextRound
from celery_throttle.worker.admission.pipeline import Pipeline
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.recovery import Recovery
from celery_throttle.worker.admission.requested_limits import (
    add_requested,
    has_limits,
    limits_of,
    requirement_of,
)
from celery_throttle.worker.failure import fail
from celery_throttle.worker.fan_out_outcomes import FanOutOutcomes
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks.pool import WorkerPool
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.task_state import Status
from celery_throttle.worker.waiting.announcements import announce_admission, announce_release
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.policy import WaitingPolicy, may_be_parked

#: Tasks that are neither in the pool nor on their way to it have no process waiting for them.
_ON_THE_WAY = (Status.SCHEDULED, Status.GATHERED)


@dataclass(eq=False, repr=False)
class Gate:
    """Decides about the requests of one worker."""

    throttle: AppLimits
    waiting: WaitingPolicy
    slots: TaskSlots
    outage: OutageMode
    delayed: DelayedTasks
    backoff: Backoff
    pool: WorkerPool
    outcomes: FanOutOutcomes
    #: Brings a request to the gate once more.
    admit_again: Callable[[Any], None]
    call_later: CallLater
    #: Calls a function in the worker's loop, from any thread.
    call_soon: Callable[..., Any]
    #: Reports a start that did not pass the gate, by the name of the task.
    report_ungated: Callable[..., None]
    #: Adopts the rules in force on the server; returns whether the app has a rules file.
    refresh_rules: Callable[[], bool]

    def __post_init__(self) -> None:
        throttle, backoff, pool = self.throttle, self.backoff, self.pool
        self._batch = Batch(self.admit_again, self.call_later, pool.queued_requests)
        self._recovery = Recovery(throttle.store, self.outage, self.delayed, self.refresh_rules)
        self._pipeline = Pipeline(throttle.store, backoff)
        self._next_round = NextRound(
            self._decide_together, self.call_later, backoff, self.call_soon
        )
        self._stopped = False
        self._quota = Quota(throttle, backoff, lambda: chain(self._batch, pool.queued_requests()))
        # Without an event loop, requests come here in several threads or greenlets.
        self._deciding = threading.RLock()

    def admit(self, request: Any) -> bool:
        """Return whether a request may run now; if not, it was parked, delayed or failed.

        True once for each start of a task, with limits or without: the place to count admissions.
        """
        admitted = self._decided(request, self._admits)
        if admitted:
            waited = announce_release(request)
            if signals.task_admitted.receivers and has_limits(self.throttle, request):
                announce_admission(request, waited)
        return admitted

    def _decided(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        """Decide, and note whether the request is left in this worker without being on its way."""
        uncounted = self.pool.uncounted
        if uncounted:
            uncounted.discard(request)
        with self._deciding:
            admitted = decide(request)
            near = admitted or request.throttle_state.status in _ON_THE_WAY
        if not near and request in state.reserved_requests:
            uncounted.add(request)
        return admitted

    def _admits(self, request: Any) -> bool:
        if self.slots.holds(request):
            return True
        task = request.throttle_state
        wait = task.return_to_gate(tuning.BOOKING_HORIZON_SECONDS)
        if wait is not None:
            return self._start_in(wait, request)
        claim = task.claim
        if claim is not None and not claim.start():
            state.task_ready(request)
            return False
        if claim is not None and claim.admitted:
            self.slots.hold(request, self.slots.holder(claim.token), claim.slots)
            return True
        return self._recovery.decided(request, self._decide)

    def end(self, request: Any) -> None:
        """Record that a task has ended, in whatever way, or was not started after all."""
        request.throttle_state.end()
        self.slots.end(request)
        if self.pool.uncounted:
            self.pool.uncounted.discard(request)
        self.pool.on_exit()

    def report_outcome(self, request: Any) -> None:
        """Report the outcome of a task, once, if it has ended for good."""
        task = request.throttle_state
        if task.outcome and not task.comes_again:
            self.outcomes.record(request.request_dict, task.outcome)
        task.outcome = ""

    def end_ungated(self, request: Any, outcome: str) -> None:
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
        """Let a task wait for limits that it met in its body; then it runs once more.

        Its message may be acknowledged already: from here on the task is in this worker only.
        """
        request.throttle_state.step_out()
        # They belong to that run: whoever revokes the task would end another one.
        request.time_start = request.worker_pid = request._apply_result = None  # noqa: SLF001  # Celery resets it nowhere
        state.task_reserved(request)
        self.pool.uncounted.add(request)
        try:
            add_requested(self.throttle, request, requested)
        except ThrottleError as error:
            self._recovery.failed(request, error)
            return
        self._next_round.add(request)
        if self._stopped:
            self._next_round.decide_all()

    def retry_later(self, request: Any, error: Exception) -> None:
        """Bring a request to the gate again later, after an error that is not the server's."""
        self._recovery.retry_later(request, error)

    def leave_outage(self) -> None:
        """The server decides again: tasks that wait in this worker may join their lines."""
        self.delayed.admit_all()

    def stats(self) -> dict[str, int]:
        """Return the number of tasks that wait in this worker, unacknowledged."""
        return {"postponed": len(self.delayed)}

    def stop(self) -> None:
        """Let go of all tasks that the pool does not have."""
        self._stopped = True
        self._next_round.decide_all()
        self.delayed.forget()
        for request in list(self.pool.uncounted):
            claim = request.throttle_state.claim
            if claim is not None:
                claim.requeue()

    def _decide(self, request: Any) -> bool:
        limits = limits_of(self.throttle, request)
        if limits is None:
            return True
        requirement = requirement_of(limits, request)
        if not self.pool.enter(request):
            return False
        if self.outage.is_on:
            return self._decide_alone(request, limits, requirement)
        if (limits.slots and not self.pool.has_room()) or self.backoff.is_resting():
            self._next_round.add(request)
            return False
        return self._take_or_park(request, limits, requirement)

    def _take_or_park(self, request: Any, limits: TaskLimits, requirement: Requirement) -> bool:
        # A slot is taken by the call that parks the task otherwise, never ahead of tasks.
        ahead = self.waiting.in_lines and not limits.slots
        if ahead and not may_be_parked(request):
            wait = self._quota.use(requirement)
            if wait is None:
                if self._quota.is_in_demand(requirement) and self._batch.add(request):
                    return False
                wait = self._quota.take(requirement)
            if wait is not None:
                return self._start_in(wait, request)
        return self._pipeline.run_one(self._park(request, limits, requirement, may_run=True))

    def _park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Attempt[bool]:
        try:
            wait = yield from self.waiting.park(request, limits, requirement, may_run=may_run)
        except StoreError:
            request.throttle_state.in_doubt = True
            raise
        if wait is None:
            return False
        self._quota.forget_refusal(requirement)
        return self._start_in(wait, request)

    def _decide_alone(self, request: Any, limits: TaskLimits, requirement: Requirement) -> bool:
        """Decide during an outage. A task that may be in a line must not run here as well."""
        task = request.throttle_state
        parked = self.waiting.in_lines and may_be_parked(request)
        wait = None if parked else self.outage.wait(requirement, waited=task.waited_in_outage)
        task.waited_in_outage = bool(wait)
        if wait == 0.0:
            self.waiting.hold_slots(request, limits, requirement)
            return True
        self.delayed.add(request, wait)
        return False

    def _decide_together(self, requests: Sequence[Any]) -> None:
        """Decide several requests in one round trip; those without a reply one by one."""
        requests = [request for request in requests if not self._is_revoked(request)]
        if self._stopped:
            for request in requests:
                self._leave(request)
            return
        results: Sequence[bool | Exception | None] = [None] * len(requests)
        if not self.outage.is_on:
            results = self._park_together(requests)
        for request, result in zip(requests, results, strict=True):
            if self._decided(request, partial(self._conclude, result)):
                request.throttle_state.schedule(0.0)
                self.admit_again(request)

    def _leave(self, request: Any) -> None:
        """Let a task go that nobody else has, while the worker stops: to its line or its queue."""
        try:
            self._pipeline.run_one(self._attempt(request, may_run=False))
        except StoreError as error:
            if not self.delayed.send_back(request):
                fail(request, error)
        except Exception as error:  # noqa: BLE001  # of a result backend, say
            self._recovery.failed(request, error)

    def _is_revoked(self, request: Any) -> bool:
        """Return whether a request was revoked, expired or was dropped; then end it."""
        try:
            revoked = request not in state.reserved_requests or request.revoked()
        except Exception as error:  # noqa: BLE001  # of a result backend that is told
            self._recovery.retry_later(request, error)
            return True
        if revoked:
            self.end(request)
        return bool(revoked)

    def _park_together(self, requests: Sequence[Any]) -> list[bool | Exception]:
        free = self.pool.count_free()
        with self._deciding:
            return self._pipeline.run(
                [
                    self._attempt(request, may_run=index < free)
                    for index, request in enumerate(requests)
                ]
            )

    def _attempt(self, request: Any, *, may_run: bool) -> Attempt[bool]:
        limits = limits_of(self.throttle, request)
        if limits is None:  # they were taken away meanwhile
            return True
        requirement = requirement_of(limits, request)
        return (yield from self._park(request, limits, requirement, may_run=may_run))

    def _conclude(self, result: bool | Exception | None, request: Any) -> bool:  # noqa: FBT001  # a value, not a switch
        if result is None or isinstance(result, (StoreUnavailableError, UnknownLimitError)):
            return self._recovery.decided(request, self._decide_again)
        if isinstance(result, Exception):
            self._recovery.failed(request, result)
            return False
        return result

    def _decide_again(self, request: Any) -> bool:
        limits = limits_of(self.throttle, request)
        if limits is None or not self.outage.is_on:
            attempt = self._attempt(request, may_run=self.pool.has_room())
            return self._pipeline.run_one(attempt)
        return self._decide_alone(request, limits, requirement_of(limits, request))

    def _start_in(self, seconds: float, request: Any) -> bool:
        """Start a request whose units are taken, at most 20 ms ahead."""
        if seconds > tuning.WAIT_IN_PLACE_SECONDS:
            request.throttle_state.schedule(seconds)
            self.call_later(seconds, self.admit_again, (request,))
            return False
        if seconds > 0:
            time.sleep(seconds)
        return True


def attach_gate(app: Any, gate: Gate) -> None:
    """Let the requests of an app pass the gate of this worker."""
    app.throttle_gate = gate


def gate_of(app: Any) -> Gate | None:
    """Return the gate of the worker that runs an app; None if none runs, or it has no limits."""
    gate: Gate | None = getattr(app, "throttle_gate", None)
    return gate
