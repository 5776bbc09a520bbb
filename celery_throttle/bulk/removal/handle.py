"""ThrottleHandle: one limit of an app, or one key of it, with the methods for its waiting tasks."""

from __future__ import annotations

from celery_throttle.bulk.removal import remove
from celery_throttle.bulk.removal.counts import Removal, WaitingCount, count_waiting
from celery_throttle.bulk.removal.remove import ReportProgress
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.operations.author import Author
from celery_throttle.tasks.app_limits import AppLimits


class ThrottleHandle(LimitHandle):
    """One limit of an app, or one key of it. ``throttle[...]`` returns it.

    It has all methods of a :class:`~celery_throttle.limiter.handle.LimitHandle`, and those that
    take waiting tasks out of their lines: tasks that need this limit, or this key of it, whatever
    other limits they need.
    """

    __slots__ = ()

    limiter: AppLimits

    def count_waiting(self) -> WaitingCount:
        """Return how many tasks :meth:`drain`, :meth:`move` or :meth:`drop` would remove now.

        Raises:
            UnknownLimitError: No task waits for the limit, and it is not defined.
            StoreUnavailableError: The server cannot be reached; of several shards, none can.
        """
        return count_waiting(self.limiter, self.ref)

    def drain(
        self,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send waiting tasks back to the broker, to the queues in whose lines they wait.

        The tasks of a line are sent in its order, one line after the other, with the headers,
        properties and bodies that they had. Tasks that ``throttle_keep_waiting`` has replaced, and
        that no worker has ended yet, are sent before the others. Tasks that begin to wait during
        the call, and claimed tasks, stay. Workers may run during the call: if they still enforce
        the limits, they park the tasks again.

        If the call is interrupted, the tasks that it has not sent wait again: at once, or, if the
        process was killed, when a lease (``throttle_lease``) has run out. Up to 100 tasks may then
        be sent twice.

        Args:
            reason: The reason, up to 500 characters; recorded in the log of changes.
            by: The author, up to 500 characters. Default: the user and host of this process.
            progress: A function that the call invokes after each batch with two numbers: the tasks
                that it has handled, and all tasks. Default: none.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            UnknownLimitError: No task waits for the limit, and it is not defined.
            QueueNotFoundError: RabbitMQ no longer has the queue.
            PublishRejectedError: The queue in RabbitMQ takes no more messages.
            StoreUnavailableError: The limits server could not be reached for a minute. The tasks
                of other shards have been sent. The errors of the broker's client are raised
                unchanged.
        """
        author = Author.of(by, reason)
        return remove.drain(self.limiter, self.ref, author, progress)

    def move(
        self,
        queue: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send waiting tasks to another queue of the broker; otherwise as :meth:`drain`.

        Args:
            queue: The name of a queue of the app, or of a queue that Celery may create.
            reason: See :meth:`drain`.
            by: See :meth:`drain`.
            progress: See :meth:`drain`.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            QueueNotFoundError: The app has no such queue, and ``task_create_missing_queues`` is
                off; or the name is empty, or no text. The method also raises the errors of
                :meth:`drain`.
        """
        author = Author.of(by, reason)
        return remove.move(self.limiter, self.ref, queue, author, progress)

    def drop(
        self,
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
            reason: The reason. It is the message of the ``TaskRevokedError`` in the results, and is
                recorded in the log of changes. Default ``"dropped"``.
            by: See :meth:`drain`.
            progress: See :meth:`drain`.

        Returns:
            The number of tasks that were removed, and of tasks that were not.

        Raises:
            UnknownLimitError: No task waits for the limit, and it is not defined.
            StoreUnavailableError: The limits server could not be reached for a minute. The tasks
                of other shards have been discarded. The errors of the result backend are raised
                unchanged.
        """
        author = Author.of(by, reason)
        return remove.drop(self.limiter, self.ref, author, progress)
