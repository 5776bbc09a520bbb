"""Plans that discard the tasks waiting in the lines of a queue."""

from __future__ import annotations

from typing import NamedTuple

from celery_throttle.operations.changes import Plan, to_us
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script

#: Tasks that one call discards at most: the server does nothing else meanwhile.
_AT_ONCE = 500

_END = b"0"


class Consumed(NamedTuple):
    """Where workers say which queues they consume, see ``consumed_queues.lua``.

    Attributes:
        name: of the set.
        lease: seconds for which a worker is taken to consume what it said.
    """

    name: str
    lease: float


def discard(keys: Keys, queue: str, unless: Consumed | None = None) -> Plan[int]:
    """Discard the tasks that wait in a queue; gives how many there were.

    Tasks that a worker has claimed go on, as what a broker has delivered does. Cut short, it is
    finished by carrying it out again.

    Args:
        keys: the names in Redis.
        queue: named with its broker.
        unless: nothing is done while a worker consumes the queue.
    """
    names = list(keys.queue(queue))
    args: list[Argument] = ["", _AT_ONCE]
    if unless is not None:
        names.append(unless.name)
        args.append(to_us(unless.lease))
    discarded, left = 0, 1
    while left > 0:
        some, left = yield Call(script("discard"), names, args)
        discarded += some
    if left == 0:
        discarded += yield from _discard_aside(keys, queue)
    return discarded


def count_waiting(keys: Keys, queue: str, unless: Consumed, again: float) -> Plan[int]:
    """How many tasks wait in a queue that no worker consumes; below zero if one does.

    It is taken to be consumed for some seconds then, so that not all workers count.
    """
    names = [*keys.queue(queue), unless.name]
    reply = yield Call(script("discard"), names, ["", 0, to_us(unless.lease), to_us(again)])
    return int(reply[1])


def _discard_aside(keys: Keys, queue: str) -> Plan[int]:
    """Those that no worker had code for."""
    discarded = 0
    cursor: Argument = "0"
    while cursor != _END:
        names = [keys.aside, keys.queue(queue).lines]
        cursor, some = yield Call(script("discard_quarantined"), names, ["", cursor])
        discarded += some
    return discarded
