"""``throttle_publish = "line"``: a task that is sent joins the line at its limits.

Through the broker it would only reach a worker that parks it. The broker gets the task if nothing
waits at its limits, if it has no limits or a time of its own, and while the limits server
cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.bulk.capturing_producer import (
    CapturedMessage,
    CapturingProducer,
    DestinationReader,
)
from celery_throttle.errors import ThrottleError
from celery_throttle.operations.define import call_registered
from celery_throttle.operations.waiting import WaitingTask, park_call
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages import packing
from celery_throttle.tasks.task_limits import TaskLimits

logger = get_logger(__name__)

#: A task with one of these options goes to the broker.
_BROKER_OPTIONS = ("eta", "countdown", "producer", "publisher", "connection")


class LinePublisher:
    """Sends tasks to the end of their lines."""

    def __init__(self, throttle: AppLimits) -> None:
        self._throttle = throttle
        self._destinations = DestinationReader(throttle)

    def send(self, apply_async: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> Any:
        """Send a task by Celery's own ``apply_async``."""
        if any(options.get(name) for name in _BROKER_OPTIONS):
            return apply_async(args, kwargs, **options)
        with self._throttle.app.producer_or_acquire() as producer:
            options["producer"] = CapturingProducer(producer, self._capture)
            return apply_async(args, kwargs, **options)

    def _capture(self, message: CapturedMessage, publish: Callable[[], Any]) -> Any:
        limits = self._throttle.task_limits(self._throttle.app.tasks[message.headers["task"]])
        if limits is None or not self._join(message, limits):
            return publish()
        return None

    def _join(self, message: CapturedMessage, limits: TaskLimits) -> bool:
        """Let a message join its line. False if it did not, or if that is unknown."""
        throttle, task_id = self._throttle, message.headers["id"]
        try:
            args, kwargs, _ = message.payload
            requirement = limits.fixed or limits.requirement(args, kwargs)
            queue, rank, expires = self._destinations.read(message)
            packed = packing.pack(message)
            waiter = WaitingTask(task_id, queue, rank, expires, limits.max_wait, packed)
            # It takes no units: tasks that wait already come first.
            call = park_call(throttle.keys, waiter, requirement, "behind")
            reply = throttle.run_plan(call_registered(throttle.plans, call, requirement.refs))
        except ThrottleError as error:  # for a wrong key or cost, the worker fails the task
            logger.debug("Task %s goes to the broker: %s", task_id, error)
            return False
        return bool(reply[0] == b"parked")
