"""The way of drain, move and drop: find the tasks, claim them in batches, dispose of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from celery_throttle.bulk.removal.counts import Removal, WaitingCount
from celery_throttle.bulk.removal.search import QueueTasks, find_tasks
from celery_throttle.bulk.removal.withdrawal import Withdrawal, WithdrawnTask
from celery_throttle.errors import QueueNotFoundError
from celery_throttle.limits.key import LimitRef
from celery_throttle.observe.text import count
from celery_throttle.operations.author import Author
from celery_throttle.operations.lines import WithdrawPlans
from celery_throttle.tasks.app_limits import AppLimits

#: Not a logger of Celery, which would show nothing in a script that sets up no logging.
logger = logging.getLogger(__name__)

#: Called after each batch with the number of tasks that were looked at, and that of all tasks.
ReportProgress = Callable[[int, int], None]


class Disposal(AbstractContextManager[None], Protocol):
    """What becomes of withdrawn tasks. A context while the tasks are withdrawn."""

    purpose: str  #: "drain", "move" or "drop"
    target: str  #: where to, such as " to queue slow"; empty for a queue of their own, or for none

    def prepare(self, tasks: Sequence[WithdrawnTask], withdrawal: Withdrawal) -> None:
        """Prepare for a batch of tasks."""

    def dispose(self, task: WithdrawnTask, queue: str) -> None:
        """Dispose of one task that waited in a queue of the broker.

        Raises:
            ValueError, TypeError, LookupError: the message cannot be used. Its task is requeued,
                and the others go on; all other errors end the removal.
        """

    def complete(self) -> None:
        """Complete a batch, before its claims are settled."""


def count_waiting(throttle: AppLimits, ref: LimitRef | None) -> WaitingCount:
    """Return the number of tasks that wait for a limit, or for any."""
    if not throttle.settings.has_server:
        return WaitingCount(0, 0, 0, {})
    plans = WithdrawPlans(throttle.keys, ref)
    found = throttle.run_plan(find_tasks(throttle, plans))
    queues: dict[str, int] = {}
    for queue in found.queues:
        name = str(queue.name)
        queues[name] = queues.get(name, 0) + queue.total
    claimed = throttle.run_plan(plans.count_claims())
    return WaitingCount(found.total, claimed, found.elsewhere, queues)


def remove(
    throttle: AppLimits,
    ref: LimitRef | None,
    disposal: Disposal,
    author: Author,
    progress: ReportProgress | None = None,
) -> Removal:
    """Withdraw the tasks that wait for a limit now, or for any, and dispose of them.

    What was done is noted in the log of changes, also if it is interrupted.
    """
    if not throttle.settings.has_server:
        return Removal(0, 0, 0, 0)
    tally = _Tally()
    try:
        _remove(throttle, WithdrawPlans(throttle.keys, ref), disposal, tally, progress)
    finally:
        if tally.removed:
            what = f"{count(tally.removed, 'task')}{disposal.target}"
            subject = "" if ref is None else throttle.keys.field(ref)
            throttle.note_removal(disposal.purpose, subject, what, author)
    claimed = throttle.run_plan(WithdrawPlans(throttle.keys, ref).count_claims())
    return Removal(tally.removed, tally.seen - tally.removed, claimed, tally.elsewhere)


@dataclass(slots=True)
class _Tally:
    """How many tasks were looked at and removed so far, and how many are of other brokers."""

    seen: int = 0
    removed: int = 0
    elsewhere: int = 0


def _remove(
    throttle: AppLimits,
    plans: WithdrawPlans,
    disposal: Disposal,
    tally: _Tally,
    progress: ReportProgress | None,
) -> None:
    withdrawal = Withdrawal(throttle.store, plans, disposal.purpose, throttle.settings.lease)
    with withdrawal, disposal:
        withdrawal.requeue_lapsed()
        found = throttle.run_plan(find_tasks(throttle, plans))
        tally.elsewhere = found.elsewhere
        for queue in found.queues:
            for tasks in _batches(withdrawal, queue, found.found_at):
                disposal.prepare(tasks, withdrawal)
                for task in tasks:
                    tally.seen += 1
                    tally.removed += _dispose(disposal, withdrawal, task, queue)
                disposal.complete()
                withdrawal.settle()
                if progress is not None:
                    progress(tally.seen, max(tally.seen, found.total))


def _batches(
    withdrawal: Withdrawal, queue: QueueTasks, parked_by: int
) -> Iterator[list[WithdrawnTask]]:
    lines = withdrawal.withdraw_lines(queue.key, list(queue.lines), parked_by)
    quarantined = withdrawal.withdraw_quarantined(queue.key) if queue.quarantined else ()
    return (tasks for tasks in chain(lines, quarantined) if tasks)


def _dispose(
    disposal: Disposal, withdrawal: Withdrawal, task: WithdrawnTask, queue: QueueTasks
) -> bool:
    """Dispose of one task; return whether that was possible."""
    withdrawal.start(task)
    try:
        disposal.dispose(task, str(queue.name))
    except QueueNotFoundError:
        withdrawal.put_back(task)
        raise
    except (ValueError, TypeError, LookupError) as error:
        logger.warning("Could not %s task %s, it waits again: %r", disposal.purpose, task.id, error)
        withdrawal.put_back(task)
        return False
    withdrawal.finish(task)
    return True
