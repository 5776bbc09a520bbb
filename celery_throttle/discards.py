"""Discards the tasks that wait in the lines of a queue. Plans, see :mod:`celery_throttle.plans`."""

from __future__ import annotations

from celery_throttle.changes import Plan
from celery_throttle.keys import Keys
from celery_throttle.scripts import Argument, Call, script

#: Tasks that one call discards at most: the server does nothing else meanwhile.
_AT_ONCE = 500

_END = b"0"


def discard(keys: Keys, queue: str, consumed: str | None = None) -> Plan[int]:
    """Discard the tasks that wait in a queue; gives how many there were.

    Tasks that a worker has claimed go on, as what a broker has delivered does. Cut short, it is
    finished by carrying it out again.

    Args:
        keys: the names in Redis.
        queue: named with its broker.
        consumed: a set of queues that workers consume, see ``discard.lua``: nothing is done while a
            worker consumes the queue.
    """
    names = [*keys.queue(queue), *([] if consumed is None else [consumed])]
    discarded, left = 0, 1
    while left > 0:
        some, left = yield Call(script("discard"), names, ["", _AT_ONCE])
        discarded += some
    if left == 0:
        discarded += yield from _discard_aside(keys, queue)
    return discarded


def count_waiting(keys: Keys, queue: str, consumed: str) -> Plan[int]:
    """How many tasks wait in a queue that no worker consumes; below zero if one does."""
    reply = yield Call(script("discard"), [*keys.queue(queue), consumed], ["", 0])
    return int(reply[1])


def _discard_aside(keys: Keys, queue: str) -> Plan[int]:
    """Those that no worker had code for."""
    discarded = 0
    cursor: Argument = "0"
    while cursor != _END:
        names = [keys.aside, keys.queue(queue).lines]
        cursor, some = yield Call(script("discard_aside"), names, ["", cursor])
        discarded += some
    return discarded
