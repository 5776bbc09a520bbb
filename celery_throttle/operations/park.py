"""The call of ``park.lua``, for workers that park tasks and for who sends a task to its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_throttle.limits.requirement import Need
from celery_throttle.operations.changes import to_us
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script


class Waiter(NamedTuple):
    """A task that may have to wait.

    Attributes:
        task_id: of the task.
        queue: where its message is, or would be; named with its broker.
        rank: of its priority, 0 to 255, the lowest first.
        expires: when, in microseconds since the epoch; 0 for never.
        max_wait: seconds that it may wait; None for any time.
        packed: its message.
    """

    task_id: str
    queue: str
    rank: int
    expires: int
    max_wait: float | None
    packed: bytes


def park_call(
    keys: Keys,
    waiter: Waiter,
    need: Need,
    mode: str,
    *,
    identity: str = "",
    redelivered: bool = False,
    remember: float = 1.0,
    holder: str = "",
    lease: float = 0.0,
    acknowledged: Sequence[str] = (),
    temporary: bool = False,
) -> Call:
    """The call for one task.

    Args:
        keys: the names in Redis.
        waiter: the task.
        need: its limits and costs.
        mode: ``"1"``: it may run now; ``"0"``: there is no process for it; ``"behind"``: it is only
            to join others that wait.
        identity: of the message.
        redelivered: whether the broker delivered it before.
        remember: seconds for which the identity is remembered.
        holder: who takes a slot.
        lease: seconds for which it is taken at first.
        acknowledged: identities whose acknowledgement is done.
        temporary: whether the broker deletes the queue with its last consumer.
    """
    queue = waiter.queue
    names = [keys.limits, keys.parks, keys.line(queue, need.refs), *keys.queue(queue)]
    args: list[Argument] = [
        "",
        waiter.task_id,
        identity,
        int(redelivered),
        waiter.rank,
        waiter.expires,
        -1 if waiter.max_wait is None else to_us(waiter.max_wait),
        to_us(remember),
        waiter.packed,
        holder,
        to_us(lease),
        mode,
        len(need.refs),
    ]
    for ref, cost in zip(need.refs, need.costs, strict=True):
        names += keys.waiting_at(queue, ref)
        args += (ref.name, keys.field(ref), cost)
    if temporary:
        names.append(keys.temporary)
    return Call(script("park"), names, [*args, *acknowledged])
