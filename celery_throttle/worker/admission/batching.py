"""Requests that the next rounds of the worker's loop decide about, several in one round trip."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.operations.plan import Blocking, Plan, Sleep
from celery_throttle.store.client import Store
from celery_throttle.store.script import Call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.health.loop_calls import LoopCalls, LoopSteps, RoundTrip
from celery_throttle.worker.hooks.timers import Alarm, Timers
from celery_throttle.worker.task_state import Status
from celery_throttle.worker.waiting.park import Candidate, WaitingPolicy

T = TypeVar("T")


class DecisionBatch:
    """Decides about requests in the next round of the worker's loop.

    Requests come here that come fast, one by one, so that one call takes units for several; for a
    limit that was full a moment ago, to join their lines together; while the server is slow, unless
    quota for them is cached; and of tasks that a limit refused in their bodies, from whatever
    thread they ended in. To Celery they stay reserved, without a process.

    Args:
        decide: decides about some requests; those that may run come to the gate once more.
        timers: the timers of the worker.
        calls: lets rounds wait after calls to a slow server.
    """

    def __init__(
        self, decide: Callable[[Sequence[Any]], None], timers: Timers, calls: LoopCalls
    ) -> None:
        self._decide = decide
        self._requests: deque[Any] = deque()
        self._alarm = Alarm(timers, lambda: calls.run_or_queue(self._decide_some))
        #: Held during a round: without an event loop, the next one may begin meanwhile.
        self._lock = threading.Lock()

    def add(self, request: Any, seconds: float = 0.0) -> Status:
        """Add a request to the next round, which begins after some seconds, or when it is full.

        Thread-safe.
        """
        status: Status = request.throttle_state.move(Status.DEFERRED)
        self._requests.append(request)
        self._alarm.set(0.0 if len(self._requests) >= tuning.DECISION_BATCH_SIZE else seconds)
        return status

    def take_unacknowledged(self) -> list[Any]:
        """Take the requests out of the next rounds whose messages the broker still has."""
        requests = [self._requests.popleft() for _ in range(len(self._requests))]
        self._requests.extend(request for request in requests if request.acknowledged)
        return [request for request in requests if not request.acknowledged]

    def _decide_some(self) -> None:
        some: list[Any] = []
        size = 0
        most, most_bytes = tuning.DECISION_BATCH_SIZE, tuning.DECISION_BATCH_BYTES
        while self._requests and len(some) < most and size < most_bytes:
            some.append(self._requests.popleft())
            size += len(some[-1].message.body or b"")
        try:
            with self._lock:
                self._decide(some)
        finally:
            if self._requests:
                self._alarm.set(tuning.NEXT_ROUND_SECONDS)


#: What the server has replied about candidates: the holder of the slots that each may have taken,
#: and its reply or error.
Decisions = list[tuple[Candidate, str, Sequence[Any] | Exception]]


def decide_together(
    throttle: AppLimits, waiting: WaitingPolicy, candidates: Sequence[Candidate]
) -> LoopSteps[Decisions]:
    """Let the server decide about candidates: it takes their units, or adds them to their lines.

    For the result see :meth:`.WaitingPolicy.conclude`.
    """
    groups = waiting.divide(candidates)
    results = yield from run_together(throttle, [waiting.park(each) for each in groups])
    decisions: Decisions = []
    for group, found in zip(groups, results, strict=True):
        each = [("", found)] * len(group) if isinstance(found, Exception) else found
        decisions += [(one, *decision) for one, decision in zip(group, each, strict=True)]
    parked = [reply for _, _, reply in decisions if waiting.is_parked(reply)]
    if parked and throttle.settings.replicas:
        try:
            yield Blocking(partial(throttle.store.confirm, throttle.settings.replicas))
        except StoreError as error:
            decisions = [
                (one, holder, error if waiting.is_parked(reply) else reply)
                for one, holder, reply in decisions
            ]
    return decisions


def run_together(throttle: LimiterCore, plans: Sequence[Plan[T]]) -> LoopSteps[list[T | Exception]]:
    """Run several plans, each of their calls in one round trip to each server; they must not sleep.

    Returns the result or error of each plan, in their order.
    """
    results: dict[int, T | Exception] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(plans)))
    while replies:
        calls: dict[Store, dict[int, Call]] = {}
        for index, reply in replies.items():
            plan = plans[index]
            resume = plan.throw if isinstance(reply, StoreError) else plan.send
            try:
                step = resume(reply)
                assert not isinstance(step, (Blocking, Sleep))  # noqa: S101  # see above
            except StopIteration as end:
                results[index] = end.value
            except Exception as error:  # noqa: BLE001  # the others go on
                results[index] = error
            else:
                store, call = (
                    (throttle.store, step) if isinstance(step, Call) else (step.store, step.call)
                )
                calls.setdefault(store, {})[index] = call
        replies = {}
        for store, some in calls.items():
            made = yield RoundTrip(store, [*some.values()])
            replies |= zip(some, made, strict=True)
    return [results[index] for index in range(len(plans))]
