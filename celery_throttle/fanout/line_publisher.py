"""``throttle_publish = "line"``: a task that is sent joins those that wait for its limits.

Through the broker it would come to a worker only to be parked. Where nothing waits, and for tasks
without limits or with a time of their own, the broker has it as ever; also while the server of the
limits cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger

from celery_throttle.errors import ThrottleError
from celery_throttle.fanout.capturing_producer import Keeping, Sent
from celery_throttle.fanout.destination import Places
from celery_throttle.messages import packing
from celery_throttle.operations.park import WaitingTask, park_call

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.limits.requirement import Requirement
    from celery_throttle.store.script import Call
    from celery_throttle.tasks.task import TaskLimits

logger = get_logger(__name__)

#: Options of tasks that are sent as they are.
_OWN_WAY = ("eta", "countdown", "producer", "publisher", "connection")


class Delaying:
    """Of one app."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._places = Places(throttle)

    def send(self, apply_async: Callable[..., Any], args: Any, kwargs: Any, **options: Any) -> Any:
        """Send a task with limits by Celery's own ``apply_async``."""
        if any(options.get(name) for name in _OWN_WAY):
            return apply_async(args, kwargs, **options)
        with self._throttle.app.producer_or_acquire() as producer:
            return apply_async(
                args, kwargs, **{**options, "producer": Keeping(producer, self._keep)}
            )

    def _keep(self, sent: Sent, publish: Callable[[], Any]) -> Any:
        limits = self._throttle.task_limits(self._throttle.app.tasks[sent.headers["task"]])
        if limits is None or not self._has_joined(sent, limits):
            return publish()
        return None

    def _has_joined(self, sent: Sent, limits: TaskLimits) -> bool:
        """Whether a message is in its line now. If nobody knows, the broker is to have it too."""
        throttle = self._throttle
        try:
            call = self._call(sent, limits)
            outcome, *about = throttle.store.run(call)
            if outcome == b"unknown":
                refs = self._need(sent, limits).refs
                throttle.run_plan(throttle.plans.register_missing(refs, int(about[1])))
                outcome, *_ = throttle.store.run(call)
        except ThrottleError as error:  # of a key or a cost, too: the worker fails the task
            logger.debug("Task %s goes to the broker: %s", sent.headers["id"], error)
            return False
        return bool(outcome == b"parked")

    @staticmethod
    def _need(sent: Sent, limits: TaskLimits) -> Requirement:
        args, kwargs, _ = sent.payload
        return limits.fixed or limits.need(args, kwargs)

    def _call(self, sent: Sent, limits: TaskLimits) -> Call:
        """It takes no unit for a task that was sent just now."""
        waiter = WaitingTask(
            task_id=sent.headers["id"],
            queue=self._places.queue_of(sent),
            rank=self._places.rank_of(sent),
            expires=self._places.expires_us(sent),
            max_wait=limits.max_wait,
            packed=packing.pack(sent),
        )
        return park_call(self._throttle.keys, waiter, self._need(sent, limits), "behind")
