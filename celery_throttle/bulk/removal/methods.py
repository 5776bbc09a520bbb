"""The methods of ``Throttle(app)`` that take waiting tasks out of their lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.limits.author import Author
from celery_throttle.limits.key import LimitRef
from celery_throttle.tasks.app_limits import AppLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.bulk.removal.counts import Removal, WaitingCount
    from celery_throttle.bulk.removal.remove import ReportProgress


class RemovalMethods(AppLimits):
    """The limits of an app, with methods that take waiting tasks of all limits out of their lines.

    A :class:`~celery_throttle.bulk.removal.handle.ThrottleHandle` has those for the tasks of one.
    """

    def count_waiting(self) -> WaitingCount:
        """Return how many tasks :meth:`drain_all`, or the like, would remove now.

        Raises:
            StoreUnavailableError: The server cannot be reached.
        """
        return count_waiting(self, None)

    def drain_all(
        self,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send the waiting tasks of all limits back to the broker.

        Use it for a rollback, or before you uninstall this package. The result and the errors are
        those of ``throttle["mail"].drain()``.

        Args:
            reason: See there.
            by: See there.
            progress: See there.
        """
        return send_to_broker(self, None, None, Author.of(by, reason), progress)

    def move_all(
        self,
        queue: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Send the waiting tasks of all limits to another queue of the broker.

        The result and the errors are those of ``throttle["mail"].move()``.

        Args:
            queue: See there.
            reason: See there.
            by: See there.
            progress: See there.
        """
        return send_to_broker(self, None, queue, Author.of(by, reason), progress)

    def drop_all(
        self,
        *,
        reason: str = "dropped",
        by: str | None = None,
        progress: ReportProgress | None = None,
    ) -> Removal:
        """Discard the waiting tasks of all limits. Their results have the state REVOKED.

        The result and the errors are those of ``throttle["mail"].drop()``.

        Args:
            reason: See there.
            by: See there.
            progress: See there.
        """
        return drop(self, None, reason, by, progress)

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
        from celery_throttle.bulk.removal.purge import purge  # noqa: PLC0415  # see below

        names = self.app.amqp.queues if queues is None else queues
        return purge(self, dict.fromkeys(names))


# What these functions need is imported late, as most processes never need it.


def count_waiting(throttle: AppLimits, ref: LimitRef | None) -> WaitingCount:
    """Return how many tasks a removal would find now; ``ref``: as for :func:`send_to_broker`."""
    from celery_throttle.bulk.removal import remove  # noqa: PLC0415

    return remove.count_waiting(throttle, ref)


def send_to_broker(
    throttle: AppLimits,
    ref: LimitRef | None,
    queue: str | None,
    author: Author,
    progress: ReportProgress | None,
) -> Removal:
    """Send waiting tasks to the broker.

    ``ref``: the limit, or the key of it, that the tasks need; None for all tasks. ``queue``: None
    for the queues in whose lines they wait.
    """
    from celery_throttle.bulk.removal.publisher import QueuePublisher  # noqa: PLC0415
    from celery_throttle.bulk.removal.remove import remove  # noqa: PLC0415

    return remove(throttle, ref, QueuePublisher(throttle.app, queue), author, progress)


def drop(
    throttle: AppLimits,
    ref: LimitRef | None,
    reason: str,
    by: str | None,
    progress: ReportProgress | None,
) -> Removal:
    """Discard waiting tasks; ``ref``: as for :func:`send_to_broker`."""
    from celery_throttle.bulk.removal.remove import remove  # noqa: PLC0415
    from celery_throttle.bulk.removal.revoker import Revoker  # noqa: PLC0415

    return remove(throttle, ref, Revoker(throttle, reason), Author.of(by, reason), progress)
