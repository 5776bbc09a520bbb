"""Waiting at the broker: a task that may not run now gets a time, and comes again then.

For users who do not want messages in Redis (``throttle_waiting = "broker"``). Each task has a time
of its own, see ``broker_wait.lua``. It keeps that time however often it goes back to the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from celery_throttle.limits.duration import MICROSECONDS, to_us, wait_to_seconds
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.plan import Attempt
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.slots import read_slot_keys
from celery_throttle.worker.waiting.announcements import announce_wait, turn_away
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.policy import WaitingPolicy, crowded, late


@dataclass(eq=False, repr=False)
class BrokerWaitPolicy(WaitingPolicy):
    """Lets tasks wait at the broker, or in this worker where the broker cannot delay messages."""

    delayed: DelayedTasks

    in_lines = False

    def park(
        self, request: Any, limits: TaskLimits, requirement: Requirement, *, may_run: bool
    ) -> Attempt[float | None]:
        """See :class:`WaitingPolicy`; the task waits for its time."""
        known = request.throttle_state.broker_wait_until
        holder = self.slots.holder(self.token(), request.id)
        call = self._call(limits, requirement, holder, known, may_run=may_run)
        outcome, about = yield from self._ask(call, requirement, holder)
        if outcome == b"admitted":
            self.slots.hold(request, holder, read_slot_keys(about[1:]))
            return float(about[0] / MICROSECONDS)
        if outcome == b"late":
            turn_away(request, limits, late(limits, requirement.refs, about))
            return None
        if outcome == b"crowded":
            turn_away(request, limits, crowded(requirement.refs, about))
            return None
        wait_us, until, index, expected_us = about
        wait, ref = wait_us / MICROSECONDS, requirement.refs[index - 1]
        request.throttle_state.wait_at_broker(ref)
        early = tuning.BROKER_WAIT_EARLY_SECONDS
        self.delayed.add(request, max(early, wait - early), until)
        if not known:
            expected = wait_to_seconds(expected_us)
            announce_wait(request, limits, ref, retry_after=expected, position=0, expected=expected)
        return None

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
