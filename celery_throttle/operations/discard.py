"""Plans that discard or count the tasks in the lines of a queue."""

from __future__ import annotations

from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script

#: The number of tasks that one call discards at most; the server does nothing else meanwhile.
DISCARD_BATCH_SIZE = 500

_END = b"0"


class ConsumedQueues(NamedTuple):
    """A set of queues that workers consume, see ``heartbeat.lua``.

    A queue counts as consumed for ``lease`` seconds after a worker's report.
    """

    key: str
    lease: float


def discard(keys: Keys, queue: str, unless: ConsumedQueues | None = None) -> Plan[int]:
    """Discard the tasks in the lines of a queue; return how many were discarded.

    Claimed tasks are not discarded, as a broker does not discard delivered messages. Nothing is
    discarded while a worker consumes the queue, if ``unless`` is given. If the plan is interrupted,
    running it again completes it.
    """
    names = list(keys.queue(queue))
    args: list[Argument] = ["", DISCARD_BATCH_SIZE]
    if unless is not None:
        names.append(unless.key)
        args.append(to_us(unless.lease))
    names.append(keys.totals())
    discarded, left = 0, 1
    while left > 0:
        count, left = yield Call(script("discard"), names, args)
        discarded += count
    cursor: Argument = "0" if left == 0 else _END
    while cursor != _END:
        names = [keys.quarantine, keys.queue(queue).lines]
        cursor, count = yield Call(script("discard_quarantined"), names, ["", cursor])
        discarded += count
    return discarded


def count_waiting(keys: Keys, queue: str, unless: ConsumedQueues, interval: float) -> Plan[int]:
    """Return the number of tasks in lines of a queue; below zero if a worker consumes it.

    The queue then counts as consumed for ``interval`` seconds, so that not every worker counts.
    """
    names = [*keys.queue(queue), unless.key, keys.totals()]
    reply = yield Call(script("discard"), names, ["", 0, to_us(unless.lease), to_us(interval)])
    return int(reply[1])
