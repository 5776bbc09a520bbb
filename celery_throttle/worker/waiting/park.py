"""Parking: a task that may not run now joins its line and leaves the worker.

One call parks the tasks that come to the gate together, see ``DecisionBatch``.

Laws at stake here: *never lost* (parked first, acknowledged after) and *never in the way* (a parked
task is in Redis, and nowhere in this worker).
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from typing import Any, ClassVar, NamedTuple

from celery.worker import state

from celery_throttle.errors import (
    KeysFullError,
    QueueFullError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    WaitTooLongError,
)
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds, to_us, wait_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import read_takes
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error
from celery_throttle.operations.waiting import Kept, LineTasks, Mode, ParkRequest, park
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.announcements import (
    announce_wait,
    end_surplus,
    send_receipt,
    turn_away,
)
from celery_throttle.worker.slots import SlotKeys, TaskSlots, read_slot_keys
from celery_throttle.worker.start import Start
from celery_throttle.worker.task_state import Status, TaskState

#: Outcomes of tasks that are in their lines.
_PARKED = (b"parked", b"known")


class Candidate(NamedTuple):
    """A request that may start, or else is to wait."""

    request: Any
    limits: TaskLimits
    requirement: Requirement
    may_run: bool  #: whether there is a process for it


class SharedCallError(StoreError):
    """A call about several tasks failed, and any of them may be the cause.

    Each is decided alone, so that a damaged message, or damaged data of a limit, stops no others.
    """


@dataclass(eq=False, repr=False)
class WaitingPolicy(ABC):
    """How tasks of one worker wait: in lines, or at the broker."""

    throttle: AppLimits
    slots: TaskSlots
    token: Callable[[], int]  #: returns a new token of this worker

    #: Whether waiting tasks are in lines, which every call to the server sees.
    in_lines: ClassVar[bool]

    @abstractmethod
    def divide(self, candidates: Sequence[Candidate]) -> Sequence[Sequence[Candidate]]:
        """Divide candidates into groups, for each of which there is one call of :meth:`park`."""

    def park(
        self, group: Sequence[Candidate]
    ) -> Plan[list[tuple[str, Sequence[Any] | StoreError]]]:
        """Take the units of tasks that may run, and else let them wait.

        Returns for each task the holder of the slots that it may have taken, and the reply, or a
        ``StoreError`` if the server cannot be asked; see :meth:`conclude`.
        """
        asked = [(one, self._holder(one.request)) for one in group]
        try:
            replies = yield from self._ask(asked)
        except StoreError as error:
            return [(holder, error) for _, holder in asked]
        return [(holder, reply) for (_, holder), reply in zip(asked, replies, strict=True)]

    @abstractmethod
    def _ask(self, group: Sequence[tuple[Candidate, str]]) -> Plan[Sequence[Sequence[Any]]]:
        """Let the server decide about a group; return the reply for each.

        The texts are the holders of the slots that they take.
        """

    def is_parked(self, reply: Sequence[Any] | Exception) -> bool:
        """Return whether a reply says that a task is in its line."""
        return self.in_lines and not isinstance(reply, Exception) and reply[0] in _PARKED

    def conclude(
        self, candidate: Candidate, holder: str, reply: Sequence[Any] | Exception
    ) -> Status | Exception:
        """Do what the server has decided about a task.

        Returns ``BOOKED`` for a start in at most 20 ms, ``RECEIVED`` if the task could start now
        and only lacks a process, ``PARKED`` if the task is in its line and is to be acknowledged by
        :meth:`leave`, ``DELAYED``, or ``ENDED`` if it was turned away; or
        its error: a ``StoreError`` if the server cannot be asked, or the ``ThrottleError`` with
        which it must fail.
        """
        if isinstance(reply, StoreError):
            candidate.request.throttle_state.in_doubt = True
            self.slots.release(holder, self._slot_keys(candidate.requirement.refs))
        if isinstance(reply, Exception):
            return reply
        try:
            return self._apply(candidate, holder, *reply)
        except Exception as error:  # noqa: BLE001  # of a result backend, say: the others go on
            return error

    def _apply(self, candidate: Candidate, holder: str, outcome: bytes, *fields: Any) -> Status:
        """Do what the server has decided about a task. Raises the error with which it must fail."""
        request, limits, requirement, _ = candidate
        refs = requirement.refs
        if outcome == b"unknown":
            raise unknown_limit_error(refs[fields[0] - 1].name, self.throttle.limits)
        if outcome == b"never":
            index, burst = fields
            raise cost_too_high_error(requirement.costs[index - 1], refs[index - 1], burst)
        if outcome == b"surplus":
            return end_surplus(request)
        task: TaskState = request.throttle_state
        if outcome == b"alone":
            task.lacked_process = True
            return task.status
        error = _refusal_error(outcome, fields, limits, requirement)
        if error is not None:
            return turn_away(request, limits, error)
        if outcome == b"admitted":
            wait_us, takes, *slots = fields
            self.slots.hold(request, holder, read_slot_keys(slots))
            at = time.monotonic() + wait_us / MICROSECONDS
            start = Start(at, read_takes(takes), settles=limits.settles)
            if slots:  # their leases are renewed, so the task may start late
                start.lasts = math.inf
            return task.book(start)
        return self._wait(request, limits, requirement, fields)

    @abstractmethod
    def _wait(
        self, request: Any, limits: TaskLimits, requirement: Requirement, fields: Sequence[Any]
    ) -> Status:
        """Let a task wait, as the fields of the reply say."""

    @abstractmethod
    def leave(self, requests: Sequence[Any]) -> None:
        """Acknowledge tasks to the broker that are in their lines: they leave this worker."""

    def take_acknowledged(self) -> list[str]:
        """Return the identities of parked messages that are acknowledged by now, each once."""
        return []

    def hold_slots(self, request: Any, limits: TaskLimits, requirement: Requirement) -> None:
        """Record the slots of a task that runs during an outage, to report them later."""
        keys = self._slot_keys(requirement.refs[index] for index in limits.slots)
        self.slots.hold(request, self._holder(request), keys)

    def _holder(self, request: Any) -> str:
        """Return a new name under which a task may hold slots."""
        return self.slots.holder(self.token(), request.id)

    def _slot_keys(self, refs: Iterable[LimitRef]) -> list[SlotKeys]:
        keys = self.throttle.keys
        return [SlotKeys(keys.entries(ref), keys.waiting_lists(ref)) for ref in refs]


def _refusal_error(
    outcome: bytes, fields: Sequence[int], limits: TaskLimits, requirement: Requirement
) -> ThrottleError | None:
    """Return the error for a task that may not even wait; None for another outcome."""
    refs = requirement.refs
    if outcome == b"late":
        expected_us, index, paused_us = fields
        ref = refs[index - 1]
        assert limits.max_wait is not None  # noqa: S101  # only then a script says so
        expected, paused = wait_to_seconds(expected_us), pause_to_seconds(paused_us)
        return WaitTooLongError(ref.name, ref.key, expected, paused, limits.max_wait)
    if outcome == b"full":
        index, most = fields
        ref = refs[index - 1]
        return QueueFullError(ref.name, ref.key, max_waiting=most or None)
    if outcome == b"crowded":
        index, most, wait_us = fields
        ref = refs[index - 1]
        retry_after = None if wait_us < 0 else wait_us / MICROSECONDS
        return KeysFullError(ref.name, ref.key, retry_after, max_keys=most)
    return None


@dataclass(eq=False, repr=False)
class ParkingPolicy(WaitingPolicy):
    """Parks tasks in their lines."""

    routing: Routing
    #: Called with the seconds after which a task that was just parked could run.
    on_parked: Callable[[float], None]

    in_lines = True

    def __post_init__(self) -> None:
        self._acknowledging: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()

    def divide(self, candidates: Sequence[Candidate]) -> Sequence[Sequence[Candidate]]:
        """See :class:`WaitingPolicy`: all join their lines together."""
        return [candidates] if candidates else []

    def _ask(self, group: Sequence[tuple[Candidate, str]]) -> Plan[Sequence[Sequence[Any]]]:
        try:
            return (yield from self._ask_by_line(group))
        except StoreUnavailableError:
            raise
        except Exception as error:
            if len(group) == 1:
                raise
            raise SharedCallError(str(error)) from error

    def _ask_by_line(self, group: Sequence[tuple[Candidate, str]]) -> Plan[Sequence[Sequence[Any]]]:
        by_line: dict[Hashable, list[int]] = {}
        for index, (candidate, _) in enumerate(group):
            by_line.setdefault(self._line_of(candidate), []).append(index)
        replies = yield from park(
            self.throttle.plans,
            [self._line_tasks([group[index] for index in some]) for some in by_line.values()],
            remember=tuning.REDELIVERY_MEMORY_SECONDS,
            lease=self.throttle.settings.lease,
            horizon=tuning.BOOKING_HORIZON_SECONDS,
            acknowledged=self.take_acknowledged(),
        )
        found = dict(zip(chain.from_iterable(by_line.values()), replies, strict=True))
        return [found[index] for index in range(len(group))]

    def _line_of(self, candidate: Candidate) -> Hashable:
        """Return what is equal for all tasks of one line."""
        queue = self.routing.queue_of(candidate.request.message)
        kept = _kept(candidate)
        name = candidate.request.name if kept else ""
        return queue, candidate.requirement.refs, kept, name

    def _line_tasks(self, tasks: Sequence[tuple[Candidate, str]]) -> LineTasks:
        """Return tasks of one line, with the holders of their slots, for the call."""
        first = tasks[0][0]
        queue = self.routing.queue_of(first.request.message)
        return LineTasks(
            self.throttle.qualify(queue),
            [self._park_request(one, holder, queue) for one, holder in tasks],
            temporary=self.routing.is_temporary(queue),
            kept=_kept(first),
            task_name=first.request.name,
        )

    def _park_request(self, candidate: Candidate, holder: str, queue: str) -> ParkRequest:
        request, limits, requirement, may_run = candidate
        message = request.message
        headers = request.throttle_state.message_headers()
        return ParkRequest(
            task_id=request.id,
            packed=packing.pack(message, headers, queue, received_by=request.hostname),
            requirement=requirement,
            rank=self.routing.rank_of(message),
            expires=expires_us(request),
            max_wait=limits.max_wait,
            mode=Mode.MAY_RUN if may_run else _mode_without_process(request, limits),
            settles=limits.settles,
            identity=identity(request),
            redelivered=may_be_in_line(request),
            holder=holder,
        )

    def _wait(
        self, request: Any, limits: TaskLimits, requirement: Requirement, fields: Sequence[Any]
    ) -> Status:
        if not fields:  # it was parked before
            if request.throttle_state.in_doubt:  # by a call that failed
                send_receipt(request, waits=True)
            return Status.PARKED
        position, expected_us, index, wait_us = fields
        wait, expected = wait_to_seconds(wait_us), wait_to_seconds(expected_us)
        # Some worker polls already for a line that has tasks, and a resume wakes one.
        if wait is not None and position == 1:
            self.on_parked(wait)
        ref = requirement.refs[index - 1]
        announce_wait(request, limits, ref, retry_after=wait, position=position, expected=expected)
        return Status.PARKED

    def leave(self, requests: Sequence[Any]) -> None:
        """See :class:`WaitingPolicy`."""
        for request in requests:
            request.throttle_state.park()
            state.task_ready(request)
            request.acknowledge()
            self._acknowledging.append((time.monotonic(), identity(request)))

    def take_acknowledged(self) -> list[str]:
        """See :class:`WaitingPolicy`.

        Celery acknowledges in a later round of its loop, in no certain order. Thread-safe.
        """
        done, latest = [], time.monotonic() - tuning.ACKNOWLEDGED_AFTER_SECONDS
        with self._lock:
            while self._acknowledging and self._acknowledging[0][0] < latest:
                done.append(self._acknowledging.popleft()[1])
        return done


def _mode_without_process(request: Any, limits: TaskLimits) -> Mode:
    """Return what may become of a task that has no process.

    It joins its line if only this worker has it. So does a task that needs a slot: the next one
    that is released is for the first in line; and one that lacked a process before, since in its
    line it competes for one with tasks without limits.
    """
    joins = request.acknowledged or limits.slots or request.throttle_state.lacked_process
    return Mode.PARK if joins else Mode.NO_PROCESS


def _kept(candidate: Candidate) -> Kept:
    kept = candidate.limits.kept
    if kept is not Kept.NEWEST:
        return kept
    request = candidate.request
    task: TaskState = request.throttle_state
    has_run = task.waited or task.claim is not None or bool(request.request_dict.get("retries"))
    return kept.for_task(returns=has_run or bool(request.delivery_info.get("redelivered")))


def may_be_in_line(request: Any) -> bool:
    """Return whether a task may be in a line already; then only parking can tell if it is new.

    The broker delivered it before, or the call that parks it failed. A claimed task is no second
    delivery, whatever its headers say.
    """
    task = request.throttle_state
    if task.in_doubt:
        return True
    return bool(request.delivery_info.get("redelivered")) and task.claim is None


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
