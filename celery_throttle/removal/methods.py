"""The methods of ``Throttle(app)`` that take waiting tasks out of their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.author import Author
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.reference import make_ref
from celery_throttle.tasks.app_limits import AppLimits

if TYPE_CHECKING:
    from celery_throttle.removal.counts import Removal, WaitingCount
    from celery_throttle.removal.remove import ReportProgress


class RemovalMethods(AppLimits):
    """The limits of an app, with methods that take waiting tasks out of their lines."""

    def count_waiting(self, limit: str | None = None, key: Any = None) -> WaitingCount:
        """Return how many tasks :meth:`drain`, :meth:`move` or :meth:`drop` would remove now.

        Args:
            limit: see :meth:`drain`.
            key: see :meth:`drain`.
        """
        # Imported late, as most processes never need it.
        from celery_throttle.removal.remove import count_waiting  # noqa: PLC0415

        return count_waiting(self, _ref_or_none(limit, key))

    def drain(
        self,
        limit: str | None = None,
        key: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send waiting tasks back to the broker, to the queues in whose lines they wait.

        For a rollback, or before this package is uninstalled. The tasks of a line are sent in its
        order, one line after the other, with the headers, properties and bodies that they had.
        Tasks that begin to wait after the call began, and claimed tasks, are left alone. Workers
        may run meanwhile: those that still have limits let the tasks wait again.

        If the call is interrupted, tasks that were not sent wait again as before: at once, or if
        the process was killed, when a lease (``throttle_lease``) has run out and a worker, or the
        next such call, finds that. Up to 100 tasks may then be sent twice.

        Args:
            limit: only tasks that need this limit, whatever other limits they need; None: all.
            key: only tasks that need this key of the limit; None: of all keys.
            reason: why, in words; noted in the log of changes.
            by: who; default the user of this process and its host.
            progress: called with the number of tasks that were looked at, and of all tasks.

        Raises:
            UnknownLimitError: no task waits for the limit, and no limit of that name is defined.
            QueueNotFoundError: RabbitMQ has no such queue any more.
            StoreUnavailableError: the server of the limits could not be reached for a minute.
            Others: errors of the broker's client.
        """
        return self._send_to_broker(None, limit, key, Author.of(by, reason), progress)

    def move(
        self,
        limit: str | None,
        queue: str,
        key: Any = None,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send waiting tasks to another queue of the broker; otherwise as :meth:`drain`.

        Args:
            limit: see :meth:`drain`.
            queue: one of the app's, or one that Celery may create.
            key: see :meth:`drain`.
            reason: see :meth:`drain`.
            by: see :meth:`drain`.
            progress: see :meth:`drain`.

        Raises:
            QueueNotFoundError: the app has no such queue, and ``task_create_missing_queues`` is
                off. Others as :meth:`drain`.
        """
        return self._send_to_broker(queue, limit, key, Author.of(by, reason), progress)

    def drop(
        self,
        limit: str | None,
        key: Any = None,
        *,
        reason: str = "dropped",
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Discard waiting tasks. Their results have the state REVOKED from now on.

        As when a worker meets a revoked task, the chord of a task fails, and a fan-out counts it
        as revoked. The signal ``task_revoked`` and the event of that name, which only workers send,
        are not sent. If the call is interrupted, repeat it: some tasks with the state REVOKED may
        wait again.

        Args:
            limit: see :meth:`drain`.
            key: see :meth:`drain`.
            reason: the message of the ``TaskRevokedError`` in the results; noted as well.
            by: see :meth:`drain`.
            progress: see :meth:`drain`.

        Raises:
            UnknownLimitError, StoreUnavailableError: as :meth:`drain`.
            Others: errors of the result backend.
        """
        from celery_throttle.removal.remove import remove  # noqa: PLC0415  # see above
        from celery_throttle.removal.revoker import Revoker  # noqa: PLC0415

        author = Author.of(by, reason)
        return remove(self, _ref_or_none(limit, key), Revoker(self, reason), author, progress)

    def _send_to_broker(
        self,
        queue: str | None,
        limit: str | None,
        key: Any,
        author: Author,
        progress: ReportProgress | None,
    ) -> Removal:
        from celery_throttle.removal.publisher import QueuePublisher  # noqa: PLC0415  # see above
        from celery_throttle.removal.remove import remove  # noqa: PLC0415

        publisher = QueuePublisher(self.app, queue)
        return remove(self, _ref_or_none(limit, key), publisher, author, progress)


def _ref_or_none(limit: str | None, key: Any) -> LimitRef | None:
    """Return the limit, or the key of it, that tasks need; None for tasks of any limit."""
    if limit is None and key is not None:
        raise LimitValueError(f"key {shown(key)} has no limit: name the limit, too")
    return None if limit is None else make_ref(limit, key)
