"""The methods of ``Throttle(app)`` that take waiting tasks out of their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limits.key import LimitRef, make_ref
from celery_throttle.operations.author import Author
from celery_throttle.tasks.app_limits import AppLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.bulk.removal.counts import Removal, WaitingCount
    from celery_throttle.bulk.removal.remove import ReportProgress


class RemovalMethods(AppLimits):
    """The limits of an app, with methods that take waiting tasks out of their lines."""

    def count_waiting(self, limit: str | None = None, key: Any = None) -> WaitingCount:
        """Return how many tasks :meth:`drain`, :meth:`move` or :meth:`drop` would remove now.

        Args:
            limit: See :meth:`drain`. Default: all limits.
            key: See :meth:`drain`. Default: all keys.

        Raises:
            UnknownLimitError: No task waits for the limit, and it is not defined.
            StoreUnavailableError: The server cannot be reached.
        """
        # Imported late, as most processes never need it.
        from celery_throttle.bulk.removal.remove import count_waiting  # noqa: PLC0415

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

        Use it for a rollback, or before you uninstall this package. The tasks of a line are sent in
        its order, one line after the other, with the headers, properties and bodies that they had.
        Tasks that begin to wait during the call, and claimed tasks, stay. Workers may run during
        the call: if they still enforce the limits, they park the tasks again.

        If the call is interrupted, the tasks that it has not sent wait again: at once, or, if the
        process was killed, when a lease (``throttle_lease``) has run out. Up to 100 tasks may then
        be sent twice.

        Args:
            limit: Only tasks that need this limit, whatever other limits they need. None (the
                default): all tasks.
            key: Only tasks that need this key of the limit. None (the default): all keys.
            reason: The reason, up to 500 characters; recorded in the log of changes.
            by: The author, up to 500 characters. Default: the user and host of this process.
            progress: A function that the call invokes after each batch with two numbers: the tasks
                that it has handled, and all tasks. Default: none.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            LimitValueError: A key is given without a limit.
            UnknownLimitError: No task waits for the limit, and it is not defined.
            QueueNotFoundError: RabbitMQ no longer has the queue.
            PublishRejectedError: The queue in RabbitMQ takes no more messages.
            StoreUnavailableError: The limits server could not be reached for a minute. The
                errors of the broker's client are raised unchanged.
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
            limit: See :meth:`drain`. None: all tasks.
            queue: The name of a queue of the app, or of a queue that Celery may create.
            key: See :meth:`drain`. Default: all keys.
            reason: See :meth:`drain`.
            by: See :meth:`drain`.
            progress: See :meth:`drain`.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            QueueNotFoundError: The app has no such queue, and ``task_create_missing_queues`` is
                off. The method also raises the errors of :meth:`drain`.
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
        """Discard waiting tasks. Their results have the state REVOKED.

        The chord of a discarded task fails, its fan-out counts it as revoked, and monitors get the
        event ``task-revoked``, as if a worker had revoked it. The signal ``task_revoked`` is not
        sent, because only workers send it. If the call is interrupted, repeat it: some tasks with
        the state REVOKED may wait again.

        Args:
            limit: See :meth:`drain`. None: all tasks.
            key: See :meth:`drain`. Default: all keys.
            reason: The reason. It is the message of the ``TaskRevokedError`` in the results, and is
                recorded in the log of changes. Default ``"dropped"``.
            by: See :meth:`drain`.
            progress: See :meth:`drain`.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            UnknownLimitError: No task waits for the limit, and it is not defined.
            StoreUnavailableError: The limits server could not be reached for a minute. The
                errors of the result backend are raised unchanged.
        """
        from celery_throttle.bulk.removal.remove import remove  # noqa: PLC0415  # see above
        from celery_throttle.bulk.removal.revoker import Revoker  # noqa: PLC0415

        author = Author.of(by, reason)
        return remove(self, _ref_or_none(limit, key), Revoker(self, reason), author, progress)

    def purge(self, queues: Iterable[str] | None = None) -> int:
        """Discard the messages of queues at the broker, and the tasks in the lines of these queues.

        ``celery purge`` discards only the messages at the broker. Tasks that workers have received
        or claimed still run. Discarded tasks get no result; fan-outs count them as revoked.

        Args:
            queues: The names of the queues. Default: all queues of the app, ``app.amqp.queues``.

        Returns:
            The number of messages and tasks that were discarded.

        Raises:
            StoreUnavailableError: The limits server cannot be reached. What was discarded before
                stays discarded. The errors of the broker's client are raised unchanged.
        """
        from celery_throttle.bulk.removal.purge import purge  # noqa: PLC0415  # see above

        names = self.app.amqp.queues if queues is None else queues
        return purge(self, dict.fromkeys(names))

    def _send_to_broker(
        self,
        queue: str | None,
        limit: str | None,
        key: Any,
        author: Author,
        progress: ReportProgress | None,
    ) -> Removal:
        from celery_throttle.bulk.removal.publisher import QueuePublisher  # noqa: PLC0415  # see above
        from celery_throttle.bulk.removal.remove import remove  # noqa: PLC0415

        publisher = QueuePublisher(self.app, queue)
        return remove(self, _ref_or_none(limit, key), publisher, author, progress)


def _ref_or_none(limit: str | None, key: Any) -> LimitRef | None:
    """Return the limit, or the key of it, that tasks need; None for tasks of any limit."""
    if limit is None and key is not None:
        raise LimitValueError(f"key {shown(key)} has no limit: name the limit, too")
    return None if limit is None else make_ref(limit, key)
