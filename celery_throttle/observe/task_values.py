"""Values that say where a task is, and which tasks wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_throttle.observe.values import Pause


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where a task is, and why it does not run yet. Fields that do not apply are None or empty.

    Attributes:
        task_id: The id of the task.
        location: ``"line"``: the task waits in its line. ``"claimed"``: a worker has claimed it,
            and runs it now or in a moment. ``"quarantine"``: it waits for a worker that has code
            for it. ``"unknown"``: none of these. The task is still at the broker, runs without
            having waited, has ended, or does not exist.
        queue: The queue of the task, as in :class:`.QueueStatus`.
        task: The name of the task; None for a claimed task, and from a
            :class:`~celery_throttle.Limiter` for a task in a line.
        waited: The seconds since the task joined its line.
        position: The position in the line, from 1.
        line_tasks: The number of tasks in the line.
        limits: The limits that the task needs, as triples: limit, encoded key or None, and cost in
            units.
        blocked_by: The limit, and the encoded key or None, at which the line waits.
        starts_in: The seconds until the expected start; None if unknown.
        pauses: The pauses of these limits and keys, and of the fan-out of the task.
        worker: The worker that has claimed the task.
        lease: The seconds until the worker counts as lost if it does not renew its lease.
        expires: When the task expires; None for never.
    """

    task_id: str
    location: str
    queue: str | None = None
    task: str | None = None
    waited: float | None = None
    position: int | None = None
    line_tasks: int | None = None
    limits: tuple[tuple[str, str | None, float], ...] = ()
    blocked_by: tuple[str, str | None] | None = None
    starts_in: float | None = None
    pauses: tuple[Pause, ...] = ()
    worker: str | None = None
    lease: float | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits in a line.

    Attributes:
        task_id: The id of the task.
        task: The name of the task; None if it cannot be read, and always from a
            :class:`~celery_throttle.Limiter`.
        queue: The queue of the task, as in :class:`.QueueStatus`.
        key: The encoded key of the limit at which the task waits; None if it needs the limit
            without a key.
        waited: The seconds since the task joined its line.
    """

    task_id: str
    task: str | None
    queue: str
    key: str | None
    waited: float


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """Tasks that wait at a limit, one page at a time.

    Attributes:
        waiting: The number of all tasks that wait at the limit.
        tasks: The tasks of this page, line by line, in the order of each line.
        next: The ``first`` of the next page; None if this is the last page.
    """

    waiting: int
    tasks: tuple[WaitingTask, ...]
    next: int | None
