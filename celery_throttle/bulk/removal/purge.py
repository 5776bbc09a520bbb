"""Purges queues: discards their messages at the broker, and the tasks in their lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_throttle.operations.discard import discard
from celery_throttle.tasks.app_limits import AppLimits


def purge(throttle: AppLimits, queues: Iterable[str]) -> int:
    """See :meth:`celery_throttle.Throttle.purge`."""
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
