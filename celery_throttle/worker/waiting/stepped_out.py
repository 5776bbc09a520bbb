"""Tasks that stepped out of a run after their messages were acknowledged.

Celery drops the requests that wait in a worker when the worker stops or loses the broker, which
delivers their messages again. It does not deliver the messages of these requests.
"""

from __future__ import annotations

from typing import Any

from celery.worker import state


class SteppedOutRequests(set[Any]):
    """The requests of such tasks, until they run again or leave the worker."""

    def is_dropped(self, request: Any) -> bool:
        """Return whether Celery has dropped a request that the broker delivers again.

        One of these requests is reserved anew instead.
        """
        if request in state.reserved_requests:
            return False
        if request not in self:
            return True
        state.task_reserved(request)
        return False
