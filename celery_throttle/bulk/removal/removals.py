"""Drain and move, drop, purge: each as a function of an app's limits.

:class:`~celery_throttle.Throttle` and the handles of its limits call them. What a function needs
alone is imported late, as most processes never need it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.author import Author
from celery_throttle.operations.lines import discard
from celery_throttle.tasks.app_limits import AppLimits

if TYPE_CHECKING:
    from celery_throttle.bulk.removal.counts import Removal, WaitingCount
    from celery_throttle.bulk.removal.remove import ReportProgress


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


def purge(throttle: AppLimits, queues: Iterable[str]) -> int:
    """Discard the messages of queues at the broker, and the tasks in the lines of these queues."""
    count = 0
    app: Any = throttle.app
    with app.connection_for_write() as connection:
        for queue in queues:
            count += _purge_messages(connection, queue)
            if throttle.settings.has_server:
                count += throttle.run_plan(discard(throttle.keys, throttle.qualify(queue)))
    return count


def _purge_messages(connection: Any, queue: str) -> int:
    try:
        with connection.channel() as channel:  # one that RabbitMQ closes after an error
            return int(channel.queue_purge(queue) or 0)
    except connection.channel_errors:  # the broker has no such queue
        return 0
