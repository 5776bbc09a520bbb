"""The call of ``park.lua``, by which workers and producers put a task into its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.requirement import Requirement
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script


class WaitingTask(NamedTuple):
    """A task to be parked."""

    task_id: str
    queue: str  #: of its message, named with its broker
    rank: int  #: of its priority, 0 to 255, the lowest first
    expires: int  #: microseconds since the epoch; 0 for never
    max_wait: float | None  #: seconds; None for any time
    packed: bytes  #: its message


def park_call(
    keys: Keys,
    task: WaitingTask,
    requirement: Requirement,
    mode: str,
    *,
    identity: str = "",
    redelivered: bool = False,
    remember: float = 1.0,
    holder: str = "",
    lease: float = 0.0,
    acknowledged: Sequence[str] = (),
    temporary: bool = False,
    now: Argument = "",
) -> Call:
    """Return the call that parks one task, or admits it; for the ``mode`` see ``park.lua``.

    The ``identity`` of the message is stored for ``remember`` seconds. ``holder`` and ``lease``
    (seconds) are of the slots that the task would take. ``temporary``: whether the broker deletes
    the queue with its last consumer. ``now``: microseconds; the server's time by default.
    """
    queue = task.queue
    names = [
        keys.limits,
        keys.unacknowledged,
        keys.line(queue, requirement.refs),
        *keys.queue(queue),
    ]
    args: list[Argument] = [
        now,
        task.task_id,
        identity,
        int(redelivered),
        task.rank,
        task.expires,
        -1 if task.max_wait is None else to_us(task.max_wait),
        to_us(remember),
        task.packed,
        holder,
        to_us(lease),
        mode,
        len(requirement.refs),
    ]
    for ref, cost in zip(requirement.refs, requirement.costs, strict=True):
        names += keys.line_limit_keys(queue, ref)
        args += (ref.name, keys.field(ref), cost)
    if temporary:
        names.append(keys.temporary_queues)
    names.append(keys.totals())
    return Call(script("park"), names, [*args, *acknowledged])
