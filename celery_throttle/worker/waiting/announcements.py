"""What the world is told of a task that may not run now: that it waits, or is turned away."""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_throttle import signals
from celery_throttle.errors import ThrottleError
from celery_throttle.limits.key import LimitRef
from celery_throttle.tasks.task import TaskLimits

logger = get_logger(__name__)

#: Seconds a task must be expected to wait to be shown as waiting. Another worker may run it from
#: now on, and its result must not be overwritten.
SHOWN = 0.1


def announce_wait(
    request: Any,
    limits: TaskLimits,
    ref: LimitRef,
    *,
    retry_after: float | None,
    position: int,
    expected: float | None,
) -> None:
    """It waits: an event, a signal, and the result backend, if the task is to be tracked.

    Args:
        request: of the task.
        limits: likewise.
        ref: the limit that binds.
        retry_after: seconds until that has room again; None if it is paused until it is resumed.
        position: in its line, from 1; 0 where there is none.
        expected: seconds until the task is expected to run; None likewise.
    """
    logger.debug("Task %s[%s] waits for %s", request.name, request.id, ref)
    fields = {"limit": ref.name, "key": ref.key, "position": position, "expected": expected}
    request.send_event("task-throttled", retry_after=retry_after, **fields)
    signals.task_throttled.send(
        sender=request.task, request=request, retry_after=retry_after, **fields
    )
    if limits.track and not request.ignore_result and (expected is None or expected >= SHOWN):
        _show(request, fields)


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


def turn_away(request: Any, limits: TaskLimits, error: ThrottleError) -> None:
    """It is not to wait: it fails, or is discarded if its task says so.

    Raises:
        ThrottleError: it is to fail with this.
    """
    if not limits.drop:
        raise error
    # As revoked: whoever waits for the result learns it, and a chord goes on.
    request._announce_revoked("throttled", terminated=False, signum=None, expired=False)  # noqa: SLF001  # the one place in Celery that does all of it
