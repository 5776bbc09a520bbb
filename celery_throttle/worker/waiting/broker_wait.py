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
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.plan import Plan
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.hooks.announcements import announce_wait
from celery_throttle.worker.task_state import Status, TaskState
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import Candidate, WaitingPolicy


@dataclass(eq=False, repr=False)
class BrokerWaitPolicy(WaitingPolicy):
    """Lets tasks wait at the broker, or in this worker where the broker cannot delay messages."""

    delayed: DelayedTasks

    in_lines = False

    def divide(self, candidates: Sequence[Candidate]) -> Sequence[Sequence[Candidate]]:
        """See :class:`WaitingPolicy`: each task is decided alone."""
        return [[candidate] for candidate in candidates]

    def _ask(self, group: Sequence[tuple[Candidate, str]]) -> Plan[Sequence[Sequence[Any]]]:
        ((candidate, holder),) = group
        call = self._call(candidate, holder)
        plans, refs = self.throttle.plans, candidate.requirement.refs
        return [(yield from call_registered(plans, call, refs))]

    def _call(self, candidate: Candidate, holder: str) -> Call:
        request, limits, requirement, may_run = candidate
        keys, known = self.throttle.keys, request.throttle_state.broker_wait_until
        names = [keys.limits]
        args: list[Argument] = [
            "",
            known,
            to_us(tuning.BOOKING_HORIZON_SECONDS),
            -1 if limits.max_wait is None or known else to_us(limits.max_wait),
            holder,
            to_us(self.throttle.settings.lease),
            int(may_run),
            int(limits.settles),
        ]
        for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
            state, *pauses = keys.decision(ref)
            lists = keys.waiting_lists(ref), keys.return_times(ref)
            names += (state, keys.entries(ref), *pauses, *lists)
            args += (ref.name, keys.field(ref), cost)
        return Call(script("broker_wait"), [*names, keys.totals()], args)

    def _wait(
        self, request: Any, limits: TaskLimits, requirement: Requirement, fields: Sequence[Any]
    ) -> Status:
        task: TaskState = request.throttle_state
        is_new = not task.broker_wait_until
        wait_us, until, index, expected_us = fields
        ref, early = requirement.refs[index - 1], tuning.BROKER_WAIT_EARLY_SECONDS
        task.wait_at_broker(ref)
        status = self.delayed.add(request, max(early, wait_us / MICROSECONDS - early), until)
        if is_new:
            expected = wait_to_seconds(expected_us)
            announce_wait(request, limits, ref, retry_after=expected, position=0, expected=expected)
        return status

    def leave(self, requests: Sequence[Any]) -> None:
        """See :class:`WaitingPolicy`; a task whose message went back to its queue has left."""
