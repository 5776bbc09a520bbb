"""Celery's events of tasks with limits, so that monitors show them right.

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
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.tasks.messages.packing import is_claimed

logger = get_logger(__name__)

_GROUP = "throttle"

#: Not in the group ``task``, whose events monitors take for states of the task.
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
    once. Each connection to the broker has another dispatcher.
    """
    update_strategies = consumer.update_strategies

    def update_strategies_after() -> None:
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None and "send" not in vars(dispatcher):
            dispatcher.send = _make_send(dispatcher, has_limits)
            if "task" in dispatcher.buffer_group:
                dispatcher.buffer_group = (*dispatcher.buffer_group, _GROUP)
        update_strategies()

    consumer.update_strategies = update_strategies_after


def _make_send(dispatcher: Any, has_limits: Callable[[Any], bool]) -> Callable[..., Any]:
    send = dispatcher.send

    def send_or_defer(type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002  # as in Celery
        if type == "task-received":
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
        elif type == PARKED_EVENT:
            if not _sends_task_events(dispatcher):
                return None
            if dispatcher.groups:  # `celery control enable_events` enables the group "task" only
                dispatcher.groups.add(_GROUP)
        return send(type, *args, **fields)

    return send_or_defer


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


def send_parked(request: Any, fields: dict[str, Any]) -> None:
    """Send the event that a task waits."""
    if request.task.send_events:
        _send(request, PARKED_EVENT, {"uuid": request.id, "name": request.name, **fields})


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
