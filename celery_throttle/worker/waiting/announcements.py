"""Announces that a task starts, waits, or is turned away: events, signals, results."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.errors import ThrottleError
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.status.stored import shown_ref
from celery_throttle.tasks.task_limits import TaskLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import Wait
from celery_throttle.worker.hooks.task_events import send_parked, send_receipt
from celery_throttle.worker.task_state import Status

logger = get_logger(__name__)


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
    send_parked(request, {**fields, "retry_after": retry_after})
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


def announce_release(request: Any) -> float:
    """Announce that a task is about to start, if it has waited; return the seconds of its wait."""
    wait: Wait | None = request.throttle_state.end_wait()
    if wait is None:
        return 0.0
    limit, key = shown_ref(wait.ref)
    signals.task_released.send(
        sender=request.task,
        request=request,
        wait=wait.seconds,
        limit=limit,
        key=key,
        position=wait.position,
    )
    return wait.seconds


def announce_admission(request: Any, wait: float) -> None:
    """Announce that a task with limits is about to start; ``wait``: the seconds of its wait."""
    signals.task_admitted.send(sender=request.task, request=request, wait=wait)


def turn_away(request: Any, limits: TaskLimits, error: ThrottleError) -> Status:
    """Discard a task that may not wait, if ``throttle_on_max_wait`` says so.

    Raises:
        ThrottleError: the given error, with which the task fails otherwise.
    """
    if not limits.drop:
        raise error
    # As if it was revoked: the result says so, and a chord goes on.
    request._announce_revoked("throttled", terminated=False, signum=None, expired=False)  # noqa: SLF001  # the one place in Celery that does all of it
    status: Status = request.throttle_state.end()
    return status
