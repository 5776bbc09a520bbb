"""Waiting at the broker: a task that may not run now is told its turn, and comes again then.

For those who do not want messages in Redis (``throttle_waiting = "broker"``). Each task has a time
of its own, see ``broker_wait.lua``. It keeps that time however often it goes back to the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery_throttle.limits.requirement import Need
from celery_throttle.operations.changes import MICROSECONDS, seconds_until, to_us
from celery_throttle.store.script import Argument, Call, script
from celery_throttle.tasks.task import TaskLimits
from celery_throttle.worker.admission.pipeline import Attempt
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.claims.slots import places_of
from celery_throttle.worker.waiting.announcements import announce_wait, turn_away
from celery_throttle.worker.waiting.delayed import turn_of
from celery_throttle.worker.waiting.policy import Waiting, crowded, late

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.claims.slots import TaskSlots
    from celery_throttle.worker.waiting.delayed import Postponed

#: Seconds by which a task comes before its turn: a start may be booked 20 ms ahead.
EARLY = HORIZON / 2


class Turns(Waiting):
    """What one worker tells to come again.

    Args:
        throttle, slots, token: see :class:`Waiting`.
        postponed: where it waits, or from where it goes back to the broker.
    """

    in_lines = False

    def __init__(
        self,
        throttle: Throttle,
        slots: TaskSlots,
        token: Callable[[], int],
        postponed: Postponed,
    ) -> None:
        super().__init__(throttle, slots, token)
        self._postponed = postponed

    def park(
        self,
        request: Any,
        limits: TaskLimits,
        need: Need,
        *,
        redelivered: bool,  # noqa: ARG002  # no copy of it waits elsewhere
        may_run: bool,
    ) -> Attempt[float | None]:
        """See :class:`Waiting`; it waits for its turn."""
        turn, token = turn_of(request), self._token()
        call = self._turn_call(limits, need, token, turn, may_run=may_run)
        outcome, about = yield from self._ask(call, need, token)
        if outcome == b"admitted":
            self._slots.hold(request, token, places_of(about[1:]))
            return float(about[0] / MICROSECONDS)
        if outcome == b"late":
            turn_away(request, limits, late(limits, need.refs, about))
            return None
        if outcome == b"crowded":
            turn_away(request, limits, crowded(need.refs, about))
            return None
        wait_us, its_turn, index, expected_us = about
        wait, ref = wait_us / MICROSECONDS, need.refs[index - 1]
        self._postponed.put_off(request, max(EARLY, wait - EARLY), its_turn)
        if not turn:
            expected = seconds_until(expected_us)
            announce_wait(request, limits, ref, retry_after=expected, position=0, expected=expected)
        return None

    def _turn_call(
        self, limits: TaskLimits, need: Need, token: int, turn: int, *, may_run: bool
    ) -> Call:
        keys = self._throttle.keys
        max_wait = -1 if limits.max_wait is None or turn else to_us(limits.max_wait)
        names = [keys.limits]
        args: list[Argument] = [
            "",
            turn,
            to_us(HORIZON),
            max_wait,
            self._slots.holder(token),
            to_us(self._throttle.settings.lease),
            int(may_run),
        ]
        for ref, cost in zip(need.refs, need.costs, strict=True):
            state, *pauses = keys.decision(ref)
            names += (state, keys.entries(ref), *pauses, keys.waits(ref), keys.turns(ref))
            args += (ref.name, keys.field(ref), cost)
        return Call(script("broker_wait"), names, args)
