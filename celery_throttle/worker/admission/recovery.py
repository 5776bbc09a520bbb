"""What follows an error of a gate's decision: another attempt, an outage, a delay, or a failure.

Law at stake here: *never lost* (an error leaves the message unacknowledged, unless the limits of
the task are wrong).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle.errors import (
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.task_state import Status, TaskState, ending, fail
from celery_throttle.worker.waiting.delayed import DelayedTasks

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class Recovery:
    """Handles the errors of the decisions of one gate."""

    throttle: AppLimits
    outage: OutageMode
    delayed: DelayedTasks
    #: Remembers the shards of limits; returns whether that was unknown.
    learn: Callable[[Mapping[str, str]], bool]
    #: Adopts the rules in force on the server; returns whether the app has a rules file.
    refresh_rules: Callable[[], bool]
    #: Returns whether the gate decides about a request.
    is_here: Callable[[Any], bool]

    def __post_init__(self) -> None:
        self._logged_at = -tuning.ERROR_LOG_SECONDS

    def run(self, request: Any, decide: Callable[[Any], Status]) -> Status:
        """Decide; once more over a new connection; then without the server, in an outage.

        If a limit is unknown, a newer rules file may have removed it: then decide by that file.
        After any other error the request is delayed, or has failed.
        """
        try:
            try:
                return decide(request)
            except UnknownLimitError:
                if not self.refresh_rules():
                    raise
                if not self._has_shard(request):
                    return self._delay(request, 0.0)
            except StoreUnavailableError as error:
                if self.throttle.store.breaker.is_open:
                    self.outage.begin(error)
            try:
                return decide(request)
            except StoreUnavailableError as error:
                self.outage.begin(error)
            return decide(request)
        except Exception as error:  # noqa: BLE001  # of a result backend, say: other tasks go on
            return self.fail_or_delay(request, error)

    def fail_or_delay(self, request: Any, error: Exception) -> Status:
        """Fail a request whose limits are wrong; delay it after any other error.

        If its limits are in another shard, that decides at once, unless this worker does not have
        it: then the task waits, until another worker has it or the deployment has ended.
        """
        try:
            if isinstance(error, OtherShardError):
                is_new = self.learn(error.assigned)
                if not self._has_shard(request) or is_new:
                    return self._delay(request, 0.0)
            elif isinstance(error, ThrottleError) and not isinstance(error, StoreError):
                with ending(request):
                    fail(request, error)
                task: TaskState = request.throttle_state
                return task.end()
        except Exception as another:  # noqa: BLE001  # as above
            error = another
        return self.delay(request, error)

    def delay(self, request: Any, error: Exception) -> Status:
        """Bring a request to the gate again later; its message stays unacknowledged."""
        now = time.monotonic()
        if now - self._logged_at > tuning.ERROR_LOG_SECONDS:
            self._logged_at = now
            trace = None if isinstance(error, ThrottleError) else error
            logger.error("Tasks with limits are held back: %s", error, exc_info=trace)
        request.throttle_state.leave_shard()  # the home shard may have to say that
        return self._delay(request, tuning.RETRY_SECONDS)

    def _has_shard(self, request: Any) -> bool:
        """Find the shard of a request anew; return whether it is that of this gate."""
        request.throttle_state.leave_shard()
        return self.is_here(request)

    def _delay(self, request: Any, seconds: float) -> Status:
        if request in state.reserved_requests:
            return self.delayed.add(request, seconds)
        task: TaskState = request.throttle_state  # Celery has dropped it
        return task.end()
