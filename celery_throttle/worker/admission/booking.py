"""Takes the units of requests, which books their starts, or else lets the requests wait.

Law at stake here: *never over* (a start is booked only with its units taken, by the server, or
during an outage from this worker's share).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.plan import Plan
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker.admission.batching import QuotaBatch
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.requested_limits import limits_of, requirement_of
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import WaitingPolicy, may_be_parked

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Booking:
    """Books starts for the requests of one worker. All methods raise ``StoreError``."""

    throttle: AppLimits
    waiting: WaitingPolicy
    outage: OutageMode
    delayed: DelayedTasks
    backoff: Backoff
    quota: Quota
    gathered: QuotaBatch

    def book(self, request: Any, limits: TaskLimits, requirement: Requirement) -> Status:
        """Book the start of a request that has a process, or else let it wait."""
        # Slots are never taken ahead, so the call that parks a task takes them as well.
        if self.waiting.in_lines and not limits.slots and not may_be_parked(request):
            status = self._use_quota(request, requirement)
            if status is not None:
                return status
        return self.book_or_park(request, limits, requirement, may_run=True)

    def _use_quota(self, request: Any, requirement: Requirement) -> Status | None:
        """Use cached quota, or take some; None if there is none."""
        quota, task = self.quota, request.throttle_state
        wait = quota.use(requirement)
        if wait is None and quota.is_in_demand(requirement) and self.gathered.has_room():
            return self.gathered.add(request)
        if wait is None:
            wait = quota.take(requirement)
        return None if wait is None else task.book(wait)

    def book_or_park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Status:
        """Take the units of a request, or else let it wait, in one call."""
        plan = self._park(request, limits, requirement, may_run=may_run)
        (status,) = self._run([request], [plan])
        if isinstance(status, Exception):
            raise status
        return status

    def book_or_park_all(self, requests: Sequence[Any], free: int) -> Sequence[Status | Exception]:
        """:meth:`book_or_park` for several requests in one round trip; ``free``: processes."""
        plans = [
            self._park_one(request, may_run=index < free) for index, request in enumerate(requests)
        ]
        return self._run(requests, plans)

    def book_in_outage(self, request: Any, limits: TaskLimits, requirement: Requirement) -> Status:
        """Decide without the server. A task that may be in a line must not run here as well."""
        task: TaskState = request.throttle_state
        parked = self.waiting.in_lines and may_be_parked(request)
        wait = None if parked else self.outage.wait(requirement, waited=task.waited_in_outage)
        task.waited_in_outage = bool(wait)
        if wait != 0.0:
            return self.delayed.add(request, wait)
        self.waiting.hold_slots(request, limits, requirement)
        return task.book(0.0)

    def _park_one(self, request: Any, *, may_run: bool) -> Plan[Status]:
        limits = limits_of(self.throttle, request)
        if limits is None:  # they were removed meanwhile
            task: TaskState = request.throttle_state
            return task.book(0.0)
        requirement = requirement_of(limits, request)
        return (yield from self._park(request, limits, requirement, may_run=may_run))

    def _park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Plan[Status]:
        status = yield from self.waiting.park(request, limits, requirement, may_run=may_run)
        if status is Status.BOOKED:
            self.quota.forget_refusal(requirement)
        return status

    def _run(
        self, requests: Sequence[Any], plans: Sequence[Plan[Status]]
    ) -> Sequence[Status | Exception]:
        """Run the plans of requests together, and acknowledge those that are parked now."""
        results = run_together(self.throttle.store, self.backoff, plans)
        parked = [index for index, result in enumerate(results) if result is Status.PARKED]
        began = time.monotonic()
        try:
            self.waiting.leave([requests[index] for index in parked])
        except StoreError as error:
            for index in parked:
                requests[index].throttle_state.in_doubt = True
                results[index] = error
        finally:
            self.backoff.record_calls(began)
        return results


def run_together(store: Store, backoff: Backoff, plans: Sequence[Plan[T]]) -> list[T | Exception]:
    """Run several plans, each of their calls in one round trip; they must not sleep.

    Returns the result or error of each plan, in their order.
    """
    results: dict[int, T | Exception] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(plans)))
    while replies:
        calls: dict[int, Call] = {}
        for index, reply in replies.items():
            plan = plans[index]
            resume = plan.throw if isinstance(reply, StoreError) else plan.send
            try:
                step = resume(reply)
                assert isinstance(step, Call)  # noqa: S101  # see above
                calls[index] = step
            except StopIteration as end:
                results[index] = end.value
            except Exception as error:  # noqa: BLE001  # the others go on
                results[index] = error
        replies = dict(zip(calls, _run_calls(store, backoff, list(calls.values())), strict=True))
    return [results[index] for index in range(len(plans))]


def _run_calls(store: Store, backoff: Backoff, calls: Sequence[Call]) -> Sequence[Any]:
    """Return the reply to each call, or its error."""
    if not calls:
        return ()
    began = time.monotonic()
    try:
        return store.run_all(calls)
    except StoreError as error:
        return [error] * len(calls)
    finally:
        backoff.record_calls(began)
