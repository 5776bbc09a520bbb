"""Celery's own ``rate_limit``, which holds tasks in the worker before they come to the gate.

Law at stake here: *never over*. Celery's strategy puts the request of a task with a ``rate_limit``
into a token bucket and starts it seconds later. The units of a claimed task are taken: it must
start when its time comes, so it bypasses the bucket. Every other task goes through the bucket
first, and takes units at the gate when the bucket lets it go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.worker import state

from celery_throttle.tasks.messages.packing import is_claimed


def bypass_rate_limits(consumer: Any) -> None:
    """Let claimed tasks bypass Celery's token buckets.

    It must be called before Celery makes its strategies, which look these methods up once. The
    buckets themselves may come and go at run time (``celery control rate_limit``).
    """

    def start(request: Any) -> None:
        state.task_reserved(request)
        for callback in consumer.on_task_message:
            callback(request)
        consumer.on_task_request(request)

    consumer._limit_task = _unless_claimed(consumer._limit_task, start)  # noqa: SLF001  # Celery has no other way in
    # For a task that has an eta as well, when that has come.
    consumer._limit_post_eta = _unless_claimed(  # noqa: SLF001  # as above
        consumer._limit_post_eta,  # noqa: SLF001  # as above
        consumer.apply_eta_task,
    )


def _unless_claimed(
    limit: Callable[..., None], start: Callable[[Any], None]
) -> Callable[..., None]:
    def limit_or_start(request: Any, *bucket: Any) -> None:
        if is_claimed(request.message):
            start(request)
        else:
            limit(request, *bucket)

    return limit_or_start
