"""Parking: a task that may not run now joins its line and leaves the worker.

One call parks one task; the gate may send several calls in one round trip, see ``DecisionBatch``.

Laws at stake here: *never lost* (parked first, acknowledged after) and *never in the way* (a parked
task is in Redis, and nowhere in this worker).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from celery.worker import state

from celery_throttle.errors import QueueFullError
from celery_throttle.limits.duration import to_us, wait_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.waiting import WaitingTask, park_call
from celery_throttle.store.script import Call
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.task_events import send_receipt
from celery_throttle.worker.slots import read_slot_keys
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.announcements import announce_wait, turn_away
from celery_throttle.worker.waiting.policy import (
    WaitingPolicy,
    keys_full_error,
    may_be_parked,
    too_late_error,
)


@dataclass(eq=False, repr=False)
class ParkingPolicy(WaitingPolicy):
    """Parks tasks in their lines."""

    routing: Routing
    #: Called with the seconds after which a task that was just parked could run.
    parked: Callable[[float], None]

    def __post_init__(self) -> None:
        self._acknowledging: deque[tuple[float, str]] = deque()

    def park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Plan[Status]:
        """See :class:`WaitingPolicy`; the task waits in its line."""
        task: TaskState = request.throttle_state
        refs, holder = requirement.refs, self._holder(request)
        call = self._park_call(request, limits, requirement, holder, may_run=may_run)
        outcome, fields = yield from self._ask(request, call, requirement, holder)
        if outcome == b"admitted":
            self.slots.hold(request, holder, read_slot_keys(fields))
            return task.book(0.0)
        if outcome == b"late":
            return turn_away(request, limits, too_late_error(limits, refs, fields))
        if outcome == b"full":
            ref, most = refs[fields[0] - 1], fields[1]
            error = QueueFullError(ref.name, ref.key, max_waiting=most or None)
            return turn_away(request, limits, error)
        if outcome == b"crowded":
            return turn_away(request, limits, keys_full_error(refs, fields))
        if outcome == b"parked":
            self._announce(request, limits, refs, fields)
        elif task.in_doubt:  # a call before, which failed, has parked it
            send_receipt(request, waits=True)
        return Status.PARKED

    def _park_call(
        self,
        request: Any,
        limits: TaskLimits,
        requirement: Requirement,
        holder: str,
        *,
        may_run: bool,
    ) -> Call:
        queue = self.routing.queue_of(request.message)
        waiter = WaitingTask(
            task_id=request.id,
            queue=self.throttle.qualify(queue),
            rank=self.routing.rank_of(request.message),
            expires=expires_us(request),
            max_wait=limits.max_wait,
            packed=packing.pack(
                request.message,
                request.throttle_state.message_headers(),
                queue,
                received_by=request.hostname,
            ),
        )
        return park_call(
            self.throttle.keys,
            waiter,
            requirement,
            str(int(may_run)),
            identity=identity(request),
            redelivered=may_be_parked(request),
            remember=tuning.REDELIVERY_MEMORY_SECONDS,
            holder=holder,
            lease=self.throttle.settings.lease,
            acknowledged=self.take_acknowledged(),
            temporary=self.routing.is_temporary(queue),
        )

    def leave(self, requests: Sequence[Any]) -> None:
        """See :class:`WaitingPolicy`."""
        settings, store = self.throttle.settings, self.throttle.store
        if requests and settings.replicas:
            store.confirm(settings.replicas)
        for request in requests:
            request.throttle_state.park()
            state.task_ready(request)
            request.acknowledge()
            self._acknowledging.append((time.monotonic(), identity(request)))

    def take_acknowledged(self) -> list[str]:
        """Return the identities of parked messages that are acknowledged by now, each once.

        Celery acknowledges in a later round of its loop, in no certain order.
        """
        done, latest = [], time.monotonic() - tuning.ACKNOWLEDGED_AFTER_SECONDS
        while self._acknowledging and self._acknowledging[0][0] < latest:
            done.append(self._acknowledging.popleft()[1])
        return done

    def _announce(
        self, request: Any, limits: TaskLimits, refs: Sequence[LimitRef], fields: Sequence[int]
    ) -> None:
        position, expected_us, index, wait_us = fields
        wait = wait_to_seconds(wait_us)
        if wait is not None:  # else the resume wakes a worker
            self.parked(wait)
        announce_wait(
            request,
            limits,
            refs[index - 1],
            retry_after=wait,
            position=position,
            expected=wait_to_seconds(expected_us),
        )


def identity(request: Any) -> str:
    """Return what tells a redelivered message from others with the same task id.

    Those are a retry, and a task that came out of a line and goes into one again.
    """
    own = packing.identity(request.id, request.request_dict)
    claim = request.throttle_state.claim
    return own if claim is None else f"{own} {claim.name}"


def expires_us(request: Any) -> int:
    """Return when a task expires, in microseconds since the epoch; 0 for never."""
    expires: datetime | None = request.expires
    if expires is None:
        return 0
    if expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return to_us(expires.timestamp())
