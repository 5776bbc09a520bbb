"""Batches of messages as calls of ``enlist.lua``, and what it replies.

Law at stake here: *never lost*. A batch whose call failed may be sent again as it is: a task that
is in its line already, or was there, is not put there once more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from celery_throttle.changes import MICROSECONDS, to_us
from celery_throttle.scripts import Argument, Call, script

if TYPE_CHECKING:
    from celery_throttle.fanout.places import Place
    from celery_throttle.keys import Keys

#: The header by which a worker knows that a task, or its retry, is part of a fan-out: its name.
HEADER = "throttle_fan_out"

#: Over so many numbers the tasks of a fan-out are spread; see ``fan_out.lua``.
NUMBERS = 64

# Which line, the number, the rank, when it expires.
_HEAD = struct.Struct("<HBBd")


def number_of(task_id: str) -> int:
    """The number of a task in the record of its fan-out."""
    return crc32(task_id.encode("utf-8", "surrogatepass")) % NUMBERS


class Entry(NamedTuple):
    """A task that is to join its line.

    Attributes:
        place: its line.
        task_id: of the task.
        rank: of its priority, 0 to 255, the lowest first.
        expires: when, in microseconds since the epoch; 0 for never.
        packed: its message.
        costs: for each limit, in millionths of a unit.
    """

    place: Place
    task_id: str
    rank: int
    expires: int
    packed: bytes
    costs: tuple[int, ...]


class Reply(NamedTuple):
    """What became of a batch.

    Attributes:
        outcome: ``done``, or why the entry after those ``dealt`` with could not join: ``hold``,
            ``crowded``, ``never`` or ``cancelled``; ``unknown``: nothing was done.
        dealt: how many entries are done with.
        sent: how many of them had not been sent before.
        waiting: tasks of the fan-out that wait now.
        about: what else is told of the outcome.
    """

    outcome: str
    dealt: int
    sent: int
    waiting: int
    about: Sequence[int]

    @classmethod
    def read(cls, reply: Sequence[Any]) -> Reply:
        """The reply of the script."""
        outcome, *about = reply
        name = outcome.decode()
        if name == "unknown":
            return cls(name, 0, 0, 0, [int(number) for number in about])
        dealt, sent, waiting, *more = about
        return cls(name, dealt, sent, waiting, more)


def enlist(
    keys: Keys,
    fan_out: str,
    entries: Sequence[Entry],
    *,
    max_waiting: int | None,
    keep: float,
    closed: bool,
) -> Call:
    """The call for a batch.

    Args:
        keys: the names in Redis.
        fan_out: its name.
        entries: of the batch.
        max_waiting: tasks of the fan-out that may wait.
        keep: seconds for which what is known of it is kept after nothing waits.
        closed: whether no more will come.
    """
    places: list[Place] = []
    lines: dict[str, int] = {}
    tasks: list[Argument] = []
    for place, task_id, rank, expires, packed, costs in entries:
        line = lines.get(place.keys[0])
        if line is None:
            places.append(place)
            line = lines[place.keys[0]] = len(places)
        head = _HEAD.pack(line, number_of(task_id), rank, expires)
        tasks += (head + struct.pack(f"<{len(costs)}d", *costs), task_id, packed)
    names = [keys.limits, keys.fan_out(fan_out)]
    args: list[Argument] = ["", max_waiting or 0, to_us(keep), int(closed), len(places)]
    for place in places:
        names += place.keys
        args += place.args
    return Call(script("enlist"), names, args + tasks)


def retry_in(reply: Reply) -> float:
    """Seconds after which a ``crowded`` entry may try again."""
    return max(0.0, reply.about[0] / MICROSECONDS)
