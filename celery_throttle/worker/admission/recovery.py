"""Decides a task even if the server of the limits fails: again, alone or later.

Law at stake here: *never lost* (while an error lasts, the message stays unacknowledged).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo
from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle.errors import StoreError, StoreUnavailableError, ThrottleError
from celery_throttle.worker.health.error_log import EVERY

if TYPE_CHECKING:
    from celery_throttle.store.client import Store
    from celery_throttle.worker.health.outage import Outage
    from celery_throttle.worker.waiting.delayed import Postponed

logger = get_logger(__name__)

#: Seconds after which a task is brought to the gate again that the server had an error for.
RETRY = 1.0

#: Seconds between two log lines on such errors.
COMPLAIN = EVERY


class Trying:
    """Of one worker.

    Args:
        store: the server.
        outage: begins when the server is lost.
        postponed: where tasks wait that there was an error for.
    """

    def __init__(self, store: Store, outage: Outage, postponed: Postponed) -> None:
        self._store = store
        self._outage = outage
        self._postponed = postponed
        self._complained = -COMPLAIN

    def decided(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        """Whether a request may run now, as ``decide`` says; if not, it is dealt with."""
        try:
            return self._insist(request, decide)
        except Exception as error:  # noqa: BLE001  # of a result backend, say: others are to go on
            self.failed(request, error)
        return False

    def failed(self, request: Any, error: Exception) -> None:
        """A request could not be decided."""
        try:
            if isinstance(error, ThrottleError) and not isinstance(error, StoreError):
                fail(request, error)
                return
        except Exception as another:  # noqa: BLE001  # as above
            error = another
        self.put_off(request, error)

    def put_off(self, request: Any, error: Exception) -> None:
        """Bring it again later; until then its message stays unacknowledged."""
        now = time.monotonic()
        if now - self._complained > COMPLAIN:
            self._complained = now
            trace = None if isinstance(error, StoreError) else error
            logger.error("Tasks with limits are held back: %s", error, exc_info=trace)
        if request in state.reserved_requests:
            self._postponed.put_off(request, RETRY)

    def _insist(self, request: Any, decide: Callable[[Any], bool]) -> bool:
        """Over a new connection, if the first was cut; alone, if the server is lost."""
        try:
            return decide(request)
        except StoreUnavailableError as error:
            if self._store.breaker.is_open:
                self._outage.begin(error)
        try:
            return decide(request)
        except StoreUnavailableError as error:
            self._outage.begin(error)
        return decide(request)


def fail(request: Any, error: Exception) -> None:
    """The task fails at once, as if its process had been lost: errbacks, chord and signal."""
    try:
        raise error
    except type(error):
        request.on_failure(ExceptionInfo(), return_ok=False)
    request.acknowledge()
