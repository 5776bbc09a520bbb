"""Announces that a task starts, waits, or is turned away: events, signals, results.

Monitors count a task as prefetched by a worker from the event ``task-received`` until that worker
sends ``task-started``, unless an event says that the task has an ``eta``. Whether a task with
limits starts in this worker is known only at the gate, so its ``task-received`` waits for the
decision there: it has an ``eta`` if the task must wait. Nothing depends on these events: an error
while one is sent is logged, and the task goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timezone
from functools import partial
from typing import Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.errors import ThrottleError
from celery_throttle.limits.key import LimitRef
from celery_throttle.tasks.messages.packing import is_claimed
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import Wait
from celery_throttle.worker.task_state import Status, ending

logger = get_logger(__name__)

#: Not in the group ``task``, whose events monitors take for states of the task.
_GROUP = "throttle"
PARKED_EVENT = f"{_GROUP}-parked"

#: The request that this thread or greenlet has made last. Celery's strategy sends the event
#: ``task-received`` of a request right after it has made it, and names only the id of the task.
_new_request: ContextVar[Any] = ContextVar("new_request", default=None)


def note_new(request: Any) -> None:
    """Note a request that Celery is about to announce as received."""
    _new_request.set(request)


def defer_receipts(consumer: Any, has_limits: Callable[[Any], bool]) -> None:
    """Let the events ``task-received`` of requests with limits wait for :func:`send_receipt`.

    It must be called before Celery makes its strategies, which look the dispatcher's method up
    once: only meanwhile it is another one. Each connection to the broker has another dispatcher.
    """
    update_strategies = consumer.update_strategies

    def update_strategies_after() -> None:
        dispatcher = consumer.event_dispatcher
        if dispatcher is None:
            update_strategies()
            return
        if "task" in dispatcher.buffer_group and _GROUP not in dispatcher.buffer_group:
            dispatcher.buffer_group = (*dispatcher.buffer_group, _GROUP)
        dispatcher.send = partial(_send_or_defer, dispatcher, dispatcher.send, has_limits)
        try:
            update_strategies()
        finally:
            del dispatcher.send

    consumer.update_strategies = update_strategies_after


def _send_or_defer(
    dispatcher: Any,
    send: Callable[..., Any],
    has_limits: Callable[[Any], bool],
    event: str,
    **fields: Any,
) -> Any:
    """Send the event ``task-received`` of a strategy, unless it waits."""
    if not _sends_task_events(dispatcher):
        return None
    request = _new_request.get()
    if request is not None and request.id == fields["uuid"]:
        _new_request.set(None)
        if not fields["eta"] and has_limits(request):
            if not is_claimed(request.message):
                request.throttle_state.receipt = {**fields, "timestamp": time.time()}
                return None
            fields["eta"] = _iso(time.time())  # it has waited
    return send(event, **fields)


def _sends_task_events(dispatcher: Any) -> bool:
    return not dispatcher.groups or "task" in dispatcher.groups  # no groups: all of them


def send_receipt(request: Any, *, waits: bool, expected: float | None = None) -> None:
    """Send the event ``task-received`` of a request if that waits to be sent.

    ``waits``: whether the task does not start here now; ``expected``: the seconds until its start,
    if they are known. Without them, the ``eta`` is the time at which the task was received.
    """
    fields, request.throttle_state.receipt = request.throttle_state.receipt, None
    if fields is None:
        return
    if waits:
        now = time.time()
        fields["eta"] = _iso(fields["timestamp"] if expected is None else now + expected)
    _send(request, "task-received", fields)


def _send(request: Any, event: str, fields: dict[str, Any]) -> None:
    try:
        if request.eventer:
            request.eventer.send(event, **fields)
    except Exception as error:  # noqa: BLE001  # of a broker's client, say
        logger.warning("Could not send event %s of task %s: %r", event, request.id, error)


def restart_fields(request: Any) -> dict[str, str]:
    """Return what ``task-started`` says of a task that has waited: no worker had prefetched it.

    It has a name, too, as the event may overtake the ``task-received`` of another worker.
    """
    if not request.eventer or not _sends_task_events(request.eventer):
        return {}
    eta = request.eta.isoformat() if request.eta else _iso(time.time())
    return {"name": request.name, "eta": eta}


def _iso(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, timezone.utc).isoformat()
    except (OverflowError, ValueError):  # after the year 9999
        return datetime.max.replace(tzinfo=timezone.utc).isoformat()


def announce_wait(
    request: Any,
    limits: TaskLimits,
    ref: LimitRef,
    *,
    retry_after: float | None,
    position: int,
    expected: float | None,
) -> None:
    """Announce that a task waits: by an event, a signal, and in the result backend if tracked.

    ``ref`` is the limit that refuses, ``retry_after`` the seconds until it has room, and
    ``expected`` the seconds until the task is expected to run; both are None if a limit is paused
    until it is resumed. ``position`` in the line counts from 1; 0 if there is no line.
    """
    logger.debug("Task %s[%s] waits for %s", request.name, request.id, ref)
    fields = {"limit": ref.name, "key": ref.key, "position": position, "expected": expected}
    send_receipt(request, waits=True, expected=expected)
    dispatcher = request.eventer
    if request.task.send_events and dispatcher and _sends_task_events(dispatcher):
        if dispatcher.groups:  # `celery control enable_events` enables the group "task" only
            dispatcher.groups.add(_GROUP)
        of_task = {"uuid": request.id, "name": request.name, "retry_after": retry_after}
        _send(request, PARKED_EVENT, {**of_task, **fields})
    signals.task_throttled.send(
        sender=request.task, request=request, retry_after=retry_after, **fields
    )
    is_short = expected is not None and expected < tuning.MIN_SHOWN_WAIT_SECONDS
    if not limits.track or request.ignore_result or is_short:
        return
    try:
        request.task.backend.store_result(
            request.id,
            fields,
            "THROTTLED",
            request=request._context,  # noqa: SLF001  # as Celery's own on_failure does
        )
    except Exception as error:  # noqa: BLE001  # whatever a backend raises, the task waits all the same
        logger.warning("Could not show that task %s waits: %r", request.id, error)


def announce_end_of_wait(request: Any, wait: Wait) -> None:
    """Announce that a task which has waited is about to start."""
    signals.task_released.send(
        sender=request.task,
        request=request,
        wait=wait.seconds,
        limit=wait.ref.name,
        key=wait.ref.key,
        position=wait.position,
    )


def turn_away(request: Any, limits: TaskLimits, error: ThrottleError) -> Status:
    """Discard a task that may not wait, if ``throttle_on_max_wait`` says so.

    Raises:
        ThrottleError: the given error, with which the task fails otherwise.
    """
    if not limits.drop:
        raise error
    return _revoke(request, "throttled")


def end_surplus(request: Any) -> Status:
    """End a task as another one waits in its stead; see ``throttle_keep_waiting``."""
    return _revoke(request, "throttled: another task waits in its line")


def _revoke(request: Any, reason: str) -> Status:
    """End a task as if it was revoked: the result says so, and its chord learns of it."""
    with ending(request):
        request._announce_revoked(reason, terminated=False, signum=None, expired=False)  # noqa: SLF001  # the one place in Celery that does all of it
    status: Status = request.throttle_state.end()
    return status
