"""Batches of messages as calls of ``enlist.lua``, and what it replies.

Law at stake here: *never lost*. A batch whose call failed may be sent again as it is: a task that
is in its line already, or was there, is not put there once more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.store.keys import fan_out_ref
from celery_throttle.store.script import Argument, Call, script

if TYPE_CHECKING:
    from celery_throttle.fanout.destination import Place
    from celery_throttle.limits.key import LimitRef
    from celery_throttle.store.keys import Keys

#: Tasks, bytes of messages, and lines that one call takes at most: the server does nothing else
#: meanwhile.
MOST_TASKS, MOST_BYTES, MOST_LINES = 200, 400_000, 50

# Which line, the number, the rank, when it expires.
_HEAD = struct.Struct("<HBBd")


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


class Batch:
    """Entries that go in one call, with the queues, limits and lines that they have in common.

    Args:
        keys: the names in Redis.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.entries: list[Entry] = []
        self.size = 0
        self._queues: dict[str, int] = {}
        self.refs: dict[tuple[str, LimitRef], int] = {}
        self._lines: dict[str, int] = {}
        self._heads: list[bytes] = []
        self._tasks: list[Argument] = []

    def add(self, entry: Entry) -> None:
        """One more."""
        place, task_id, rank, expires, packed, costs = entry
        line = self._lines.get(place.line) or self._new_line(place)
        head = _HEAD.pack(line, self._keys.fan_out_number(task_id), rank, expires)
        self._tasks += (head + struct.pack(f"<{len(costs)}d", *costs), task_id, packed)
        self.entries.append(entry)
        self.size += len(packed)

    def _new_line(self, place: Place) -> int:
        queue = self._queues.setdefault(place.queue, len(self._queues) + 1)
        refs = [self.refs.setdefault((place.queue, ref), len(self.refs) + 1) for ref in place.refs]
        self._heads.append(struct.pack(f"<{len(refs) + 1}H", queue, *refs))
        line = self._lines[place.line] = len(self._lines) + 1
        return line

    def is_full(self) -> bool:
        """Whether the server has enough to do with it."""
        enough = len(self.entries) >= MOST_TASKS or self.size >= MOST_BYTES
        return enough or len(self._lines) >= MOST_LINES

    def part(self, first: int, count: int | None = None) -> Batch:
        """Some of them: all from a place on, or so many."""
        if first == 0 and (count is None or count >= len(self.entries)):
            return self
        part = Batch(self._keys)
        for entry in self.entries[first:][:count]:
            part.add(entry)
        return part

    def call(self, fan_out: str, *, max_waiting: int | None, keep: float, closed: bool) -> Call:
        """The call for them.

        Args:
            fan_out: its name.
            max_waiting: tasks of the fan-out that may wait.
            keep: seconds for which what is known of it is kept after nothing waits.
            closed: whether no more will come.
        """
        keys = self._keys
        names = [keys.limits, keys.fan_out(fan_out)]
        args: list[Argument] = ["", max_waiting or 0, to_us(keep), int(closed)]
        pause = keys.pause(fan_out_ref(fan_out))
        args += (len(self._queues), len(self.refs), pause)
        for queue in self._queues:
            names += keys.queue(queue)
        for queue, ref in self.refs:
            names += keys.line_limit_keys(queue, ref)
            args += (ref.name, keys.field(ref))
        return Call(script("enlist"), [*names, *self._lines], [*args, *self._heads, *self._tasks])
