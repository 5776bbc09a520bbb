"""Drain and move, drop, purge: each as a function of an app's limits.

:class:`~celery_throttle.Throttle` and the handles of its limits call them. Drain, move and drop
find the tasks, claim them in batches, and dispose of each. What one of them needs alone is imported
late, as most processes never need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from celery_throttle.bulk.removal.counts import Removal, find_tasks, reachable_first
from celery_throttle.bulk.removal.withdrawal import Disposal, Withdrawal
from celery_throttle.errors import QueueNotFoundError, shown
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.text import count
from celery_throttle.operations.author import Author
from celery_throttle.operations.lines import WithdrawPlans, discard
from celery_throttle.tasks.app_limits import AppLimits

#: Called after each batch with the number of tasks that were looked at, and that of all tasks.
ReportProgress = Callable[[int, int], None]


def drain(
    throttle: AppLimits, ref: LimitRef | None, author: Author, progress: ReportProgress | None
) -> Removal:
    """Send waiting tasks back to the broker, to the queues in whose lines they wait.

    ``ref``: the limit, or the key of it, that the tasks need; None for all tasks.
    """
    from celery_throttle.bulk.removal.publisher import QueuePublisher  # noqa: PLC0415

    publisher = QueuePublisher(throttle.app)
    return _remove(throttle, ref, lambda _: publisher, author, progress)


def move(
    throttle: AppLimits,
    ref: LimitRef | None,
    queue: str,
    author: Author,
    progress: ReportProgress | None,
) -> Removal:
    """Send waiting tasks to another queue of the broker; ``ref``: as for :func:`drain`."""
    from celery_throttle.bulk.removal.publisher import QueuePublisher  # noqa: PLC0415

    _check_queue(queue)
    publisher = QueuePublisher(throttle.app, queue)
    return _remove(throttle, ref, lambda _: publisher, author, progress)


def _check_queue(queue: object) -> None:
    if not isinstance(queue, str) or not queue:
        raise QueueNotFoundError(f"queue is {shown(queue)}; allowed: the name of a queue")


def drop(
    throttle: AppLimits, ref: LimitRef | None, author: Author, progress: ReportProgress | None
) -> Removal:
    """Discard waiting tasks; ``ref``: as for :func:`drain`."""
    from celery_throttle.bulk.removal.revoker import Revoker  # noqa: PLC0415

    parts, reason = throttle.parts_by_name, author.reason or ""
    return _remove(throttle, ref, lambda part: Revoker(part, parts, reason), author, progress)


def _remove(
    throttle: AppLimits,
    ref: LimitRef | None,
    make_disposal: Callable[[AppLimits], Disposal],
    author: Author,
    progress: ReportProgress | None,
) -> Removal:
    """Withdraw the tasks that wait now, shard by shard, and dispose of them."""
    done = Removal(0, 0, 0, 0)
    parts = throttle.parts_with(ref) if throttle.settings.has_server else []
    for part in reachable_first(parts):
        seen = done.removed + done.failed
        done += _remove_from_shard(part, ref, make_disposal(part), author, progress, before=seen)
    return done


def _remove_from_shard(
    throttle: AppLimits,
    ref: LimitRef | None,
    disposal: Disposal,
    author: Author,
    progress: ReportProgress | None,
    *,
    before: int,
) -> Removal:
    """Withdraw the tasks that wait now in one shard; ``before``: tasks seen in earlier shards.

    What was done is noted in the log of changes, also if it is interrupted.
    """
    plans = WithdrawPlans(throttle.keys, ref)
    withdrawal = Withdrawal(throttle.store, plans, disposal, throttle.settings.lease)
    try:
        with withdrawal, disposal:
            withdrawal.requeue_lapsed()
            found = throttle.run_plan(find_tasks(throttle, throttle.observer, plans))
            total = sum(queue.total for queue in found.queues)
            for queue in found.queues:
                for seen in withdrawal.remove(queue, found.found_at):
                    if progress is not None:
                        progress(before + seen, before + max(seen, total))
    finally:
        if withdrawal.removed:
            what = f"{count(withdrawal.removed, 'task')}{disposal.target}"
            subject = "" if ref is None else throttle.keys.field(ref)
            throttle.note_removal(disposal.purpose, subject, what, author)
    claimed = throttle.run_plan(plans.count_claims())
    failed = withdrawal.seen - withdrawal.removed
    return Removal(withdrawal.removed, failed, claimed, found.elsewhere)


def purge(throttle: AppLimits, queues: Iterable[str]) -> int:
    """Discard the messages of queues at the broker, and the tasks in the lines of these queues."""
    from amqp.exceptions import NotFound  # noqa: PLC0415

    purged, queues = 0, [*queues]
    for queue in queues:
        _check_queue(queue)
    app: Any = throttle.app
    with app.connection_for_write() as connection:
        for queue in queues:
            # RabbitMQ may have no such queue, and closes the channel after an error.
            with suppress(NotFound), connection.channel() as channel:
                purged += int(channel.queue_purge(queue) or 0)
    for part in reachable_first(throttle.app_parts if throttle.settings.has_lines else []):
        for queue in queues:
            purged += part.run_plan(discard(part.keys, part.qualify(queue)))
    return purged
