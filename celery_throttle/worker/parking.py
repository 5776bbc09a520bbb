"""Parking: a task that may not run now joins its line and leaves the worker.

Laws at stake here: *never lost* (parked first, acknowledged after) and *never in the way* (what is
parked is in Redis, and nowhere in this worker).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle import signals
from celery_throttle.changes import MICROSECONDS, to_us, unknown_limit
from celery_throttle.errors import (
    KeysFullError,
    QueueFullError,
    StoreError,
    ThrottleError,
    WaitTooLongError,
)
from celery_throttle.needs import Need
from celery_throttle.plans import cost_too_high
from celery_throttle.scope import LimitRef
from celery_throttle.scripts import Argument, Call, script
from celery_throttle.task import TaskLimits
from celery_throttle.worker import messages
from celery_throttle.worker.slots import Place

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.origin import Origin
    from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)

#: Seconds for which a parked message is recognised when the broker delivers it once more.
REMEMBER = 86_400

#: Seconds after which an acknowledgement has surely been sent.
ACKNOWLEDGED = 2.0

#: Seconds a task must be expected to wait to be shown as waiting. Another worker may run it from
#: now on, and its result must not be overwritten.
SHOWN = 0.1


class Parking:
    """What one worker parks.

    Args:
        throttle: the app's limits.
        origin: tells the queue and the priority of a message.
        slots: the slots of the tasks that run.
        token: gives a new token of this worker.
        parked: called with the seconds after which a task that was just parked could run.
    """

    def __init__(
        self,
        throttle: Throttle,
        origin: Origin,
        slots: TaskSlots,
        token: Callable[[], int],
        parked: Callable[[float], None],
    ) -> None:
        self._throttle = throttle
        self._origin = origin
        self._slots = slots
        self._token = token
        self._parked = parked
        self._left: deque[tuple[float, str]] = deque()

    def park(
        self, request: Any, limits: TaskLimits, need: Need, *, redelivered: bool, may_run: bool
    ) -> bool:
        """Try once more, if it may run, else let the task join its line; tells whether it runs.

        Raises:
            StoreError: the server cannot be asked.
            ThrottleError: the task has to fail.
        """
        refs, token = need.refs, self._token()
        call = self._park_call(
            request, limits, need, token, redelivered=redelivered, may_run=may_run
        )
        try:
            reply = self._throttle.store.run(call)
            if reply[0] == b"unknown":
                self._throttle.run_plan(self._throttle.plans.register_missing(refs, int(reply[2])))
                reply = self._throttle.store.run(call)
        except StoreError:
            keys = self._throttle.keys
            places = [(keys.entries(ref), keys.waits(ref)) for ref in refs]
            self._slots.doubt(self._slots.holder(token), places)
            raise
        outcome, *about = reply
        if outcome == b"admitted":
            self._slots.hold(request, token, places_of(about))
            return True
        if outcome == b"unknown":
            raise unknown_limit(refs[about[0] - 1].name, self._throttle.limits)
        if outcome == b"never":
            index, burst = about
            raise cost_too_high(need.costs[index - 1], refs[index - 1], burst)
        if outcome == b"late":
            self._too_late(request, limits, about[0], refs[about[1] - 1])
        elif outcome == b"full":
            self._full(request, limits, refs[about[0] - 1], about[1])
        elif outcome == b"crowded":
            self._crowded(request, limits, refs[about[0] - 1], about[1:])
        else:
            self._leave(request)
            if outcome == b"parked":
                self._announce(request, limits, refs, about)
        return False

    def _park_call(
        self,
        request: Any,
        limits: TaskLimits,
        need: Need,
        token: int,
        *,
        redelivered: bool,
        may_run: bool,
    ) -> Call:
        keys = self._throttle.keys
        queue = self._origin.queue_of(request.message)
        names = [keys.limits, keys.parks, keys.line(queue, need.refs), *keys.queue(queue)]
        max_wait = -1 if limits.max_wait is None else to_us(limits.max_wait)
        args: list[Argument] = [
            "",
            request.id,
            identity(request),
            int(redelivered),
            self._origin.rank_of(request.message),
            expires_us(request),
            max_wait,
            REMEMBER * MICROSECONDS,
            messages.pack(request.message),
            self._slots.holder(token),
            to_us(self._throttle.settings.lease),
            int(may_run),
            len(need.refs),
        ]
        for ref, cost in zip(need.refs, need.costs, strict=True):
            state, *pauses = keys.decision(ref)
            names += (state, keys.entries(ref), *pauses, keys.backlog(ref))
            names += (keys.waiting(queue, ref), keys.waits(ref), keys.waited(ref.name))
            args += (ref.name, keys.field(ref), cost)
        args += self.acknowledged()
        return Call(script("park"), names, args)

    def _leave(self, request: Any) -> None:
        """The task is safe in Redis: let the broker and this worker forget it."""
        state.task_ready(request)
        request.acknowledge()
        self._left.append((time.monotonic(), identity(request)))

    def acknowledged(self) -> list[str]:
        """Identities of parked messages whose acknowledgement is done; the next call tells it.

        Celery acknowledges in a later turn of its loop, in no certain order.
        """
        done = []
        while self._left and self._left[0][0] < time.monotonic() - ACKNOWLEDGED:
            done.append(self._left.popleft()[1])
        return done

    def _announce(
        self, request: Any, limits: TaskLimits, refs: Sequence[LimitRef], about: Sequence[int]
    ) -> None:
        position, expected_us, index, wait_us = about
        ref = refs[index - 1]
        wait, expected = wait_us / MICROSECONDS, expected_us / MICROSECONDS
        logger.debug("Task %s[%s] waits for %s", request.name, request.id, ref)
        self._parked(wait)
        fields = {
            "limit": ref.name,
            "key": ref.key,
            "retry_after": wait,
            "position": position,
            "expected": expected,
        }
        request.send_event("task-throttled", **fields)
        signals.task_throttled.send(sender=request.task, request=request, **fields)
        if limits.track and not request.ignore_result and expected >= SHOWN:
            del fields["retry_after"]
            _show(request, fields)

    def _too_late(self, request: Any, limits: TaskLimits, expected: int, ref: LimitRef) -> None:
        assert limits.max_wait is not None  # noqa: S101  # only then the script says so
        self._turn_away(
            request,
            limits,
            WaitTooLongError(
                retry_after=expected / MICROSECONDS,
                limit=ref.name,
                key=ref.key,
                max_wait=limits.max_wait,
            ),
        )

    def _full(self, request: Any, limits: TaskLimits, ref: LimitRef, most: int) -> None:
        error = QueueFullError(ref.name, ref.key, max_waiting=most or None)
        self._turn_away(request, limits, error)

    def _crowded(
        self, request: Any, limits: TaskLimits, ref: LimitRef, about: Sequence[int]
    ) -> None:
        most, wait = about
        retry_after = None if wait < 0 else wait / MICROSECONDS
        self._turn_away(request, limits, KeysFullError(ref.name, ref.key, retry_after, most))

    def _turn_away(self, request: Any, limits: TaskLimits, error: ThrottleError) -> None:
        if not limits.drop:
            raise error
        # As revoked: whoever waits for the result learns it, and a chord goes on.
        request._announce_revoked("throttled", terminated=False, signum=None, expired=False)  # noqa: SLF001  # the one place in Celery that does all of it


def places_of(slots: Sequence[bytes]) -> list[Place]:
    """Where slots are kept, of a script's reply."""
    names = [name.decode() for name in slots]
    return list(zip(names[::2], names[1::2], strict=True))


def _show(request: Any, fields: dict[str, Any]) -> None:
    try:
        request.task.backend.store_result(
            request.id,
            fields,
            "THROTTLED",
            request=request._context,  # noqa: SLF001  # as Celery's own on_failure does
        )
    except Exception as error:  # noqa: BLE001  # whatever a backend raises, nobody but this needs it
        logger.warning("Could not show that task %s waits: %r", request.id, error)


def identity(request: Any) -> str:
    """Tells a message that is delivered once more from a retry, which has the same task id."""
    headers = request.request_dict
    return f"{request.id} {headers.get('retries') or 0} {headers.get('replaced_task_nesting') or 0}"


def expires_us(request: Any) -> int:
    """When the task expires, in microseconds since the epoch; 0 for never."""
    expires: datetime | None = request.expires
    if expires is None:
        return 0
    if expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return to_us(expires.timestamp())
