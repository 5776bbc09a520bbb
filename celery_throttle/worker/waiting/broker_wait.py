"""Waiting at the broker: a task that may not run now gets a time, and comes again then.

For users who do not want messages in Redis (``throttle_waiting = "broker"``). Each task has a time
of its own, see ``broker_wait.lua``. It keeps that time however often it goes back to the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery_throttle.limits.duration import MICROSECONDS, to_us, wait_to_seconds
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.slots import read_slot_keys
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.announcements import announce_wait, turn_away
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.policy import (
    WaitingPolicy,
    keys_full_error,
    too_late_error,
)


@dataclass(eq=False, repr=False)
class BrokerWaitPolicy(WaitingPolicy):
    """Lets tasks wait at the broker, or in this worker where the broker cannot delay messages."""

    delayed: DelayedTasks

    in_lines = False

    def park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Plan[Status]:
        """See :class:`WaitingPolicy`; the task waits for its time."""
        task: TaskState = request.throttle_state
        refs, holder = requirement.refs, self._holder(request)
        known = task.broker_wait_until
        call = self._call(limits, requirement, holder, known, may_run=may_run)
        outcome, fields = yield from self._ask(request, call, requirement, holder)
        if outcome == b"admitted":
            self.slots.hold(request, holder, read_slot_keys(fields[1:]))
            return task.book(fields[0] / MICROSECONDS)
        if outcome == b"late":
            return turn_away(request, limits, too_late_error(limits, refs, fields))
        if outcome == b"crowded":
            return turn_away(request, limits, keys_full_error(refs, fields))
        wait_us, until, index, expected_us = fields
        wait, ref = wait_us / MICROSECONDS, refs[index - 1]
        task.wait_at_broker(ref)
        early = tuning.BROKER_WAIT_EARLY_SECONDS
        status = self.delayed.add(request, max(early, wait - early), until)
        if not known:
            expected = wait_to_seconds(expected_us)
            announce_wait(request, limits, ref, retry_after=expected, position=0, expected=expected)
        return status

    def leave(self, requests: Sequence[Any]) -> None:
        """See :class:`WaitingPolicy`; a task whose message went back to its queue has left."""

    def _call(
        self,
        limits: TaskLimits,
        requirement: Requirement,
        holder: str,
        known: int,
        *,
        may_run: bool,
    ) -> Call:
        keys = self.throttle.keys
        max_wait = -1 if limits.max_wait is None or known else to_us(limits.max_wait)
        names = [keys.limits]
        args: list[Argument] = [
            "",
            known,
            to_us(tuning.BOOKING_HORIZON_SECONDS),
            max_wait,
            holder,
            to_us(self.throttle.settings.lease),
            int(may_run),
        ]
        for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
            state, *pauses = keys.decision(ref)
            names += (
                state,
                keys.entries(ref),
                *pauses,
                keys.waiting_lists(ref),
                keys.return_times(ref),
            )
            args += (ref.name, keys.field(ref), cost)
        return Call(script("broker_wait"), [*names, keys.totals()], args)
