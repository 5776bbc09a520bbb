"""Runs a decision of the gate, whatever fails: again, without the server, or later.

Law at stake here: *never lost* (while an error lasts, the message stays unacknowledged).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle.errors import (
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.store.client import Store
from celery_throttle.worker import tuning
from celery_throttle.worker.failure import fail
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.task_state import Status
from celery_throttle.worker.waiting.delayed import DelayedTasks

logger = get_logger(__name__)


class Recovery:
    """Runs decisions of the gate. If the server fails, tries again, then begins an outage."""

    def __init__(
        self,
        store: Store,
        outage: OutageMode,
        delayed: DelayedTasks,
        refresh_rules: Callable[[], bool],
    ) -> None:
        self._store = store
        self._outage = outage
        self._delayed = delayed
        self._refresh_rules = refresh_rules
        self._logged_at = -tuning.ERROR_LOG_SECONDS

    def run(self, request: Any, decide: Callable[[Any], Status]) -> Status:
        """Return the decision about a request; after an error it is delayed, or has failed."""
        try:
            return self._decide(request, decide)
        except Exception as error:  # noqa: BLE001  # of a result backend, say: other tasks go on
            return self.fail_or_delay(request, error)

    def fail_or_delay(self, request: Any, error: Exception) -> Status:
        """Fail a request whose limits are wrong; delay it after any other error."""
        try:
            if isinstance(error, ThrottleError) and not isinstance(error, StoreError):
                fail(request, error)
                return _end(request)
        except Exception as another:  # noqa: BLE001  # as above
            error = another
        return self.delay(request, error)

    def delay(self, request: Any, error: Exception) -> Status:
        """Bring a request to the gate again later; its message stays unacknowledged."""
        now = time.monotonic()
        if now - self._logged_at > tuning.ERROR_LOG_SECONDS:
            self._logged_at = now
            trace = None if isinstance(error, StoreError) else error
            logger.error("Tasks with limits are held back: %s", error, exc_info=trace)
        if request in state.reserved_requests:
            return self._delayed.add(request, tuning.RETRY_SECONDS)
        return _end(request)  # Celery has dropped it

    def _decide(self, request: Any, decide: Callable[[Any], Status]) -> Status:
        """Decide; once more over a new connection; then without the server, in an outage.

        If a limit is unknown, a newer rules file may have removed it: then decide by that file.
        """
        try:
            return decide(request)
        except UnknownLimitError:
            if not self._refresh_rules():
                raise
        except StoreUnavailableError as error:
            if self._store.breaker.is_open:
                self._outage.begin(error)
        try:
            return decide(request)
        except StoreUnavailableError as error:
            self._outage.begin(error)
        return decide(request)


def _end(request: Any) -> Status:
    status: Status = request.throttle_state.end()
    return status
