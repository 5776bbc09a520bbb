"""What becomes of a task that may not run now: the base of both ways to wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from celery_throttle.errors import KeysFullError, StoreError, WaitTooLongError
from celery_throttle.limits.duration import MICROSECONDS, pause_to_seconds, wait_to_seconds
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import cost_too_high_error, unknown_limit_error
from celery_throttle.store.script import Call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker.slots import SlotKeys, TaskSlots
from celery_throttle.worker.task_state import Status


@dataclass(eq=False, repr=False)
class WaitingPolicy(ABC):
    """How tasks of one worker wait."""

    throttle: AppLimits
    slots: TaskSlots
    token: Callable[[], int]  #: returns a new token of this worker

    #: Whether waiting tasks are in lines, which every call to the server sees.
    in_lines: ClassVar[bool] = True

    @abstractmethod
    def park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Plan[Status]:
        """Take the units of a task that may run, and else let it wait.

        Returns ``BOOKED`` for a start in at most 20 ms, ``PARKED`` if the task is in its line and
        is to be acknowledged by :meth:`leave`, ``DELAYED``, or ``ENDED`` if it was turned away.
        ``may_run``: whether there is a process for it.

        Raises:
            StoreError: the server cannot be asked.
            ThrottleError: the task must fail.
        """

    @abstractmethod
    def leave(self, requests: Sequence[Any]) -> None:
        """Acknowledge tasks to the broker that are in their lines: they leave this worker.

        Raises:
            StoreError: the tasks may not be safe in Redis.
        """

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

    def _ask(
        self, request: Any, call: Call, requirement: Requirement, holder: str
    ) -> Plan[tuple[bytes, list[Any]]]:
        """Make the call that takes units or parks; return its outcome and the fields of that."""
        refs = requirement.refs
        try:
            reply = yield from call_registered(self.throttle.plans, call, refs)
        except StoreError:
            request.throttle_state.in_doubt = True
            self.slots.release(holder, self._slot_keys(refs))
            raise
        outcome, *fields = reply
        if outcome == b"unknown":
            raise unknown_limit_error(refs[fields[0] - 1].name, self.throttle.limits)
        if outcome == b"never":
            index, burst = fields
            raise cost_too_high_error(requirement.costs[index - 1], refs[index - 1], burst)
        return outcome, fields

    def _slot_keys(self, refs: Iterable[LimitRef]) -> list[SlotKeys]:
        keys = self.throttle.keys
        return [SlotKeys(keys.entries(ref), keys.waiting_lists(ref)) for ref in refs]


def may_be_parked(request: Any) -> bool:
    """Return whether a task may be in a line already; then only parking can tell if it is new.

    The broker delivered it before, or the call that parks it failed. A claimed task is no second
    delivery, whatever its headers say.
    """
    task = request.throttle_state
    if task.in_doubt:
        return True
    return bool(request.delivery_info.get("redelivered")) and task.claim is None


def keys_full_error(refs: Sequence[LimitRef], fields: Sequence[int]) -> KeysFullError:
    """Return the error for a key above ``max-keys``, from a script's reply."""
    index, most, wait_us = fields
    ref = refs[index - 1]
    retry_after = None if wait_us < 0 else wait_us / MICROSECONDS
    return KeysFullError(ref.name, ref.key, retry_after, most)


def too_late_error(
    limits: TaskLimits, refs: Sequence[LimitRef], fields: Sequence[int]
) -> WaitTooLongError:
    """Return the error for a task that would wait longer than it may, from a script's reply."""
    assert limits.max_wait is not None  # noqa: S101  # only then a script says so
    expected_us, index, paused_us = fields
    ref = refs[index - 1]
    expected, paused = wait_to_seconds(expected_us), pause_to_seconds(paused_us)
    return WaitTooLongError(ref.name, ref.key, expected, limits.max_wait, paused)
