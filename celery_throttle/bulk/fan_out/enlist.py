"""Batches of messages as calls of ``enlist.lua``, and its replies.

Law at stake: *never lost*. A batch whose call failed may be sent again as it is: a task that is in
its line, or has been, does not join it once more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import Keys, fan_out_ref
from celery_throttle.store.script import Argument, Call, script

# Bounds of one call, as the server does nothing else meanwhile. Bytes are those of messages.
MAX_BATCH_TASKS, MAX_BATCH_BYTES, MAX_BATCH_LINES = 200, 400_000, 50

# The head of an entry; see `enlist.lua`.
_HEAD = struct.Struct("<HBBBBd")


class FanOutOptions(NamedTuple):
    """What a call says about its fan-out."""

    name: str
    max_waiting: int | None  #: its tasks that may wait; None for any number
    keep: float  #: seconds that its record is kept after its last task has left its line


class Destination(NamedTuple):
    """A line: that of a queue, and of the limits and keys that its tasks need."""

    queue: str  #: named with its broker
    refs: tuple[LimitRef, ...]
    line: str  #: its key in Redis
    shard: str = ""  #: the name of the shard of the limits; empty without shards


class LineEntry(NamedTuple):
    """A task that joins its line."""

    destination: Destination
    task_id: str
    rank: int  #: of its priority: 0 to 255, the lowest first
    expires: int  #: microseconds since the epoch; 0 for never
    packed: bytes  #: its message
    costs: tuple[int, ...]  #: for each limit, in millionths of a unit
    settles: bool = False  #: whether its run settles what is taken for it
    ignores_result: bool = False  #: whether the result backend gets no error of it
    position: int = 0  #: of its signature in the call, from 0


class EnlistReply(NamedTuple):
    """What became of a batch."""

    #: ``done``, or why the entry after the processed ones could not join: ``hold``, ``crowded``,
    #: ``never`` or ``cancelled``.
    outcome: str
    processed: int  #: the number of entries that are done with
    sent: int  #: how many of these had not been sent before
    waiting: int  #: tasks of the fan-out that wait now
    details: Sequence[int]  #: more about the outcome, see `enlist.lua`

    @classmethod
    def read(cls, reply: Sequence[Any]) -> EnlistReply:
        """Decode the reply of the script."""
        outcome, processed, sent, waiting, *details = reply
        return cls(outcome.decode(), processed, sent, waiting, details)


class EnlistBatch:
    """Entries of one call, with the queues, limits and lines that they share.

    Attributes:
        closed: whether no more tasks will come.
        shards: the shards that have a part of the fan-out, to be added to those in the record.
    """

    def __init__(self, keys: Keys, options: FanOutOptions, *, closed: bool = False) -> None:
        self.closed = closed
        self.shards: tuple[str, ...] = ()
        self.entries: list[LineEntry] = []
        self._keys = keys
        self._options = options
        self._pause = fan_out_ref(options.name)
        self._size = 0
        self._queues: dict[str, int] = {}
        self._refs: dict[tuple[str, LimitRef], int] = {}
        self._lines: dict[str, int] = {}
        self._heads: list[bytes] = []
        self._tasks: list[Argument] = []

    def add(self, entry: LineEntry) -> None:
        """Add an entry."""
        destination, task_id, rank, expires, packed, costs, settles, ignores_result, _ = entry
        line = self._lines.get(destination.line) or self._add_line(destination)
        number = self._keys.fan_out_number(task_id)
        head = _HEAD.pack(line, number, rank, settles, ignores_result, expires)
        self._tasks += (head + struct.pack(f"<{len(costs)}d", *costs), task_id, packed)
        self.entries.append(entry)
        self._size += len(packed)

    def _add_line(self, destination: Destination) -> int:
        queue, refs, line, _ = destination
        numbers = [self._queues.setdefault(queue, len(self._queues) + 1)]
        every = (*refs, self._pause)
        numbers += [self._refs.setdefault((queue, ref), len(self._refs) + 1) for ref in every]
        self._heads.append(struct.pack(f"<{len(numbers)}H", *numbers))
        self._lines[line] = len(self._lines) + 1
        return self._lines[line]

    def is_full(self) -> bool:
        """Whether it has reached one of the bounds of a call."""
        full = len(self.entries) >= MAX_BATCH_TASKS or self._size >= MAX_BATCH_BYTES
        return full or len(self._lines) >= MAX_BATCH_LINES

    def limits(self) -> list[LimitRef]:
        """Return the limits that the entries need."""
        return list(dict.fromkeys(ref for _, ref in self._refs if ref != self._pause))

    def ref_at(self, index: int) -> LimitRef:
        """Return the limit that a reply names by an index from 1."""
        return list(self._refs)[index - 1][1]

    def part(self, first: int, count: int | None = None) -> EnlistBatch:
        """Return a batch of ``count`` entries from a position on; None for all that follow."""
        entries = self.entries[first:][:count]
        if len(entries) == len(self.entries):
            return self
        is_last = first + len(entries) == len(self.entries)
        return self._batch_of(entries, closed=self.closed and is_last)

    def without(self, task_ids: set[str]) -> EnlistBatch:
        """Return a batch of all entries but those of some tasks."""
        entries = [entry for entry in self.entries if entry.task_id not in task_ids]
        return self._batch_of(entries, closed=self.closed)

    def _batch_of(self, entries: Iterable[LineEntry], *, closed: bool) -> EnlistBatch:
        batch = EnlistBatch(self._keys, self._options, closed=closed)
        for entry in entries:
            batch.add(entry)
        return batch

    def call(self, elsewhere: int = 0) -> Call:
        """Return the call; ``elsewhere``: tasks of the fan-out that wait in other shards."""
        keys, (fan_out, max_waiting, keep) = self._keys, self._options
        room = -1 if max_waiting is None else max(0, max_waiting - elsewhere)
        shards = "".join(f" {shard}" for shard in self.shards)
        names = [keys.limits, keys.fan_out(fan_out), keys.fan_outs]
        args: list[Argument] = ["", room, to_us(keep), int(self.closed)]
        args += (len(self._queues), len(self._refs), keys.pause(self._pause), fan_out, shards)
        for queue in self._queues:
            names += keys.queue(queue)
        for queue, ref in self._refs:
            names += keys.line_limit_keys(queue, ref)
            args += (ref.name, keys.field(ref))
        names += (*self._lines, keys.totals())
        return Call(script("enlist"), names, [*args, *self._heads, *self._tasks])
