"""Books the starts of requests: takes their units, from the server or during an outage without it.

Laws at stake here: *never over* (a start is booked only with its units taken) and *first come,
first served* (the call that parks a task decides once more, so nothing comes between the decision
and its line).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, MutableSet, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_throttle.errors import StoreError, ThrottleError
from celery_throttle.limits.requirement import Requirement
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.batching import Decisions, decide_together
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.admission.request_limits import limits_of, requirement_of
from celery_throttle.worker.health.loop_calls import LateReplyError, LoopCalls
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import Candidate, WaitingPolicy, may_be_in_line


@dataclass(eq=False, repr=False)
class Booking:
    """Books the starts of the requests of one gate. Its methods raise StoreError."""

    throttle: AppLimits
    waiting: WaitingPolicy
    outage: OutageMode
    delayed: DelayedTasks
    calls: LoopCalls
    quota: Quota
    #: Lets the next round of the worker's loop decide about a request, or one after some seconds.
    defer: Callable[..., Status]
    #: Called with requests after the end of the late call that has decided about them, and with the
    #: result of each.
    conclude_late: Callable[[Sequence[Any], Sequence[Status | Exception]], None]
    #: Called with a request after the end of the late call for it, and with its start, None if
    #: there is none within 20 ms, or the error of the call.
    resume: Callable[[Any, Start | Exception | None], None]
    #: Requests that wait in this worker without a process, as the pool counts them.
    idle_requests: MutableSet[Any]
    #: Held while a gate decides.
    deciding: AbstractContextManager[Any]

    def book(self, request: Any, limits: TaskLimits, requirement: Requirement) -> Status:
        """Book the start of a request that has a process, or else let it wait.

        If no quota is known to be left, the call that parks the task decides once more: units may
        have come back since, and nothing may come between the decision and its line.
        """
        if self.waiting.in_lines and self.quota.is_refused(requirement):
            return self.defer(request, tuning.GATHER_SECONDS)
        task: TaskState = request.throttle_state
        if self._may_take_ahead(request, limits):
            start = self.quota.use(requirement, time.monotonic())
            if start is None and self.quota.should_gather(requirement):
                return self.defer(request, tuning.GATHER_SECONDS)
            try:
                start = start or self.quota.take(requirement, partial(self.resume, request))
            except LateReplyError:
                return self.delayed.await_reply(request)
            if start is not None:
                return task.book(start)
        return self.book_or_park(request, may_run=True)

    def book_cached(
        self, request: Any, limits: TaskLimits, requirement: Requirement
    ) -> Status | None:
        """Book a request that has a process without a call; None if no quota for it is cached."""
        ahead = self._may_take_ahead(request, limits)
        start = self.quota.use(requirement, time.monotonic()) if ahead else None
        return None if start is None else request.throttle_state.book(start)

    def _requirement_ahead(self, request: Any) -> Requirement | None:
        """Return the requirement of a request that quota of this worker may serve."""
        try:
            limits = limits_of(self.throttle, request)
            if limits is None or request.acknowledged or not self._may_take_ahead(request, limits):
                return None
            return requirement_of(limits, request)
        except Exception:  # noqa: BLE001  # of its key, say: it is raised again for this request
            return None

    def _may_take_ahead(self, request: Any, limits: TaskLimits) -> bool:
        """Return whether quota of this worker may serve a request.

        Slots are never taken ahead, so the call that parks a task takes them as well. So it does
        for a run that settles: of units that are taken for several starts, none is known alone.
        """
        ahead = not (limits.slots or limits.settles or may_be_in_line(request))
        return ahead and self.waiting.in_lines

    def book_in_outage(self, request: Any, limits: TaskLimits, requirement: Requirement) -> Status:
        """Decide without the server. A task that may be in a line must not run here as well."""
        task: TaskState = request.throttle_state
        in_line = self.waiting.in_lines and may_be_in_line(request)
        wait = None if in_line else self.outage.wait(requirement, waited=task.waited_in_outage)
        task.waited_in_outage = bool(wait)
        if wait != 0.0:
            return self.delayed.add(request, wait)
        self.waiting.hold_slots(request, limits, requirement)
        return task.book_now()

    def book_or_park(self, request: Any, *, may_run: bool) -> Status:
        """Take the units of a request, or else let it wait, in one call.

        Returns ``DELAYED`` if the reply is late, see ``conclude_late``; ``RECEIVED`` if it may not
        run, but its limits have room.
        """
        (status,) = self.book_or_park_all([request], [may_run])
        if isinstance(status, Exception):
            raise status
        return status

    def book_or_park_round(
        self, requests: Sequence[Any], may_run: Sequence[bool]
    ) -> Sequence[Status | Exception]:
        """:meth:`book_or_park` for several requests that have waited for a call.

        One call takes quota for them, and for tasks that come until the next round. Another one
        decides about those that get none.
        """
        results = self._book_ahead(requests, may_run)
        left = [
            (each, may) for each, may in zip(requests, may_run, strict=True) if each not in results
        ]
        if left:
            some = [request for request, _ in left]
            decided = self.book_or_park_all(some, [may for _, may in left])
            results |= zip(some, decided, strict=True)
        return [results[request] for request in requests]

    def _book_ahead(
        self, requests: Sequence[Any], may_run: Sequence[bool]
    ) -> dict[Any, Status | Exception]:
        """Book the requests that quota of this worker serves, with one call at most.

        Those that lack only a process stay ``RECEIVED``. Returns the results; those that are
        missing are to be decided by the server.
        """
        required = {request: self._requirement_ahead(request) for request in requests}
        counts = Counter(required.values())
        ahead = {
            request: (requirement, may)
            for (request, requirement), may in zip(required.items(), may_run, strict=True)
            if requirement is not None and self.quota.may_have(requirement, counts[requirement])
        }
        results: dict[Any, Status | Exception] = {}
        try:
            self.quota.fetch(
                [requirement for requirement, may in ahead.values() if may],
                [requirement for requirement, may in ahead.values() if not may],
            )
        except LateReplyError:  # all others that the gate has wait for its end, too
            return dict.fromkeys(requests, Status.RECEIVED)
        except StoreError as error:
            results = {request: error for request, (_, may) in ahead.items() if may}
        except ThrottleError:  # of the first: the server decides about each
            pass
        for request, (requirement, may) in ahead.items():
            if not may and not self.quota.is_refused(requirement):
                results[request] = request.throttle_state.status
            elif may and request not in results:
                start = self.quota.use(requirement, time.monotonic())
                if start is not None:
                    results[request] = request.throttle_state.book(start)
        return results

    def book_or_park_all(
        self, requests: Sequence[Any], may_run: Sequence[bool]
    ) -> Sequence[Status | Exception]:
        """:meth:`book_or_park` for several requests in one round trip."""
        results: dict[Any, Status | Exception] = {}
        candidates = []
        for request, may in zip(requests, may_run, strict=True):
            try:
                limits = limits_of(self.throttle, request)
                if limits is None:  # they were removed meanwhile
                    results[request] = request.throttle_state.book_now()
                    continue
                candidates.append(Candidate(request, limits, requirement_of(limits, request), may))
            except Exception as error:  # noqa: BLE001  # of its key, say: the others go on
                results[request] = error
        steps = decide_together(self.throttle, self.waiting, candidates)
        try:
            decisions = self.calls.run(steps, partial(self._receive_late, candidates))
        except LateReplyError:
            for one in candidates:
                results[one.request] = self.delayed.await_reply(one.request)
        else:
            results |= self._conclude(decisions)
        return [results[request] for request in requests]

    def _receive_late(
        self, candidates: Sequence[Candidate], decisions: Decisions | Exception
    ) -> None:
        if isinstance(decisions, Exception):
            decisions = [(one, "", decisions) for one in candidates]
        with self.deciding:
            for one in candidates:
                self.delayed.remove(one.request)
                one.request.throttle_state.arrive_at_gate()
            results = self._conclude(decisions)
        self.conclude_late([*results], [*results.values()])

    def _conclude(self, decisions: Decisions) -> dict[Any, Status | Exception]:
        """Do what the server has decided; return the result of each request."""
        results: dict[Any, Status | Exception] = {}
        for candidate, holder, reply in decisions:
            request, _, requirement, _ = candidate
            result = results[request] = self.waiting.conclude(candidate, holder, reply)
            if result in (Status.BOOKED, Status.RECEIVED):  # its limits have room
                self.quota.forget_refusal(requirement)
            elif result is Status.PARKED:
                self.quota.remember_refusal(requirement)
        parked = [each for each, result in results.items() if result is Status.PARKED]
        # First: a greenlet that counts free processes while one of these is acknowledged would take
        # the processes of as many tasks for free.
        self.idle_requests -= set(parked)
        self.waiting.leave(parked)
        return results
