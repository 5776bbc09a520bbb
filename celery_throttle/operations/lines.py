"""Plans about the tasks in lines: which queues have some; withdraw them; discard them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.plan import Plan, ReadContext, batches, read_call
from celery_throttle.store.keys import FAN_OUT_NAME, Keys
from celery_throttle.store.script import Argument, Call, script

#: The cursor that ends a scan.
END = b"0"


def list_names(context: ReadContext) -> Plan[tuple[int, list[str]]]:
    """Return the server's time in microseconds, and the names of all limits that it knows."""
    names: dict[str, None] = {}
    first_time, cursor = 0, b""
    while cursor != END:
        scan = "SSCAN", context.keys.names, cursor or "0", "COUNT", 500
        server_time, (cursor, found) = yield read_call(context.now(), scan)
        first_time = first_time or int(server_time)
        names.update((name.decode(), None) for name in found)
    return first_time, list(names)


def waiting_queues(
    keys: Keys, names: Iterable[str], most_lists: int = sys.maxsize
) -> Plan[tuple[list[str], bool]]:
    """Return the queues, each with its broker, of tasks that wait at limits of these names.

    And of tasks of paused fan-outs. Also returns whether these are all: the search stops after more
    than ``most_lists`` waiting lists, each of which has one or more lines.
    """
    queues: dict[str, None] = {}
    head, lists = keys.queue("").due, 0
    for name in (*names, FAN_OUT_NAME):
        cursor = b""
        while cursor != END and lists <= most_lists:
            call = Call(script("list_queues"), [keys.waiting_list_index(name)], [cursor or "0"])
            cursor, found, seen = yield call
            lists += seen
            queues.update((due.decode().removeprefix(head), None) for due in found)
    return list(queues), lists <= most_lists


def scan_call(key: str, kind: str, cursor: Argument, needed: Sequence[str] = ("", "")) -> Call:
    """Return the call that reads some lines or tasks; see ``scan.lua``.

    ``needed``: the name of the limit that they need, and the field of one key of it, or empty.
    """
    return Call(script("scan"), [key], [kind, cursor, *needed])


def _scan(key: str, kind: str, needed: Sequence[str] = ("", "")) -> Plan[list[Any]]:
    rows: list[Any] = []
    cursor = b""
    while cursor != END:
        cursor, *found = yield scan_call(key, kind, cursor or "0", needed)
        rows += found
    return rows


class Claimant(NamedTuple):
    """A holder of claims."""

    name: str
    lease: float  #: seconds after which its claims are requeued if it dies


@dataclass(frozen=True, slots=True)
class WithdrawPlans:
    """The calls and plans for the tasks that need one limit."""

    keys: Keys
    #: The limit: one key of it, or without a key all of them. None: tasks of any limit.
    ref: LimitRef | None
    now: Argument = ""  #: microseconds; the server's time by default

    @property
    def _filter(self) -> tuple[str, str]:
        """The arguments by which scripts tell which tasks need the limit."""
        if self.ref is None:
            return "", ""
        return self.ref.name, "" if self.ref.key is None else self.keys.field(self.ref)

    def lines(self, queue: str) -> Plan[dict[str, int]]:
        """Return the lines of a queue, and how many tasks wait in each.

        Surplus lines come first: their tasks have been replaced by those of the others.
        """
        rows = yield from _scan(self.keys.queue(queue).lines, "lines", self._filter)
        rows.sort(key=lambda row: bool(row[2]))
        return {line.decode(): count for line, count, *_ in rows}

    def limits_of_lines(self, queue: str) -> Plan[list[tuple[int, list[str]]]]:
        """Return of each line of a queue how many tasks wait, and the names of its limits."""
        rows = yield from _scan(self.keys.queue(queue).lines, "lines", self._filter)
        return [(count, [name.decode() for name in names]) for _, count, _, *names in rows]

    def count_quarantined(self) -> Plan[Counter[str]]:
        """Return the number of tasks in quarantine, by their queues, each with its broker."""
        rows = yield from _scan(self.keys.quarantine, "quarantine", self._filter)
        head = self.keys.queue("").lines
        return Counter(lines.decode().removeprefix(head) for _, _, lines in rows)

    def count_claims(self) -> Plan[int]:
        """Return the number of tasks that are claimed, by workers for example."""
        count = 0
        workers = "ZRANGE", self.keys.workers, "(0", "+inf", "BYSCORE"
        _, names = yield read_call(self.now, workers)
        for name in names:
            claims = self.keys.claims(name.decode())
            count += len((yield from _scan(claims, "claims", self._filter)))
        return count

    def lines_call(
        self,
        claimant: Claimant,
        queue: str,
        lines: Sequence[str],
        *,
        first_token: int,
        parked_by: int,
        most: int,
        score: Argument = "-inf",
    ) -> Call:
        """Return the call that claims the first tasks of some lines; see ``withdraw_lines.lua``.

        Only tasks that joined by the time ``parked_by`` (microseconds) are claimed. ``score`` is
        where the last call ended in the first of the lines.
        """
        keys = self.keys
        names = [keys.workers, keys.claims(claimant.name), *keys.queue(queue), *lines]
        names.append(keys.totals())
        args = [self.now, claimant.name, to_us(claimant.lease), first_token, parked_by, most, score]
        return Call(script("withdraw_lines"), names, args)

    def quarantined_call(
        self, claimant: Claimant, queue: str, cursor: Argument, *, first_token: int
    ) -> Call:
        """Return the call that claims some tasks of a queue that are in quarantine."""
        keys, name = self.keys, claimant.name
        names = [keys.workers, keys.claims(name), keys.quarantine, keys.queue(queue).lines]
        args = [self.now, name, to_us(claimant.lease), first_token, cursor, *self._filter]
        return Call(script("withdraw_quarantined"), names, args)


#: The number of tasks that one call discards at most; the server does nothing else meanwhile.
DISCARD_BATCH_SIZE = 500

#: The number of tasks that one call returns from quarantine; their messages may be large.
RECALL_BATCH_SIZE = 100


def discard(keys: Keys, queue: str, *, unless_consumed_for: float | None = None) -> Plan[int]:
    """Discard the tasks in the lines of a queue; return how many were discarded.

    Claimed tasks are not discarded, as a broker does not discard delivered messages. If the plan is
    interrupted, running it again completes it.

    ``unless_consumed_for``: discard only the tasks of a queue that the broker deletes with its last
    consumer, and that no worker has reported for so many seconds; see ``heartbeat.lua``.
    """
    discarded, left = yield from _discard_lines(keys, queue, unless_consumed_for)
    if left < 0:
        return 0
    rows = yield from _scan(keys.quarantine, "quarantine")
    lines = keys.queue(queue).lines
    ids = [task_id for task_id, _, found in rows if found.decode() == lines]
    for some in batches(ids, RECALL_BATCH_SIZE):
        yield recall_call(keys, some)
        count, _ = yield from _discard_lines(keys, queue)
        discarded += count
    return discarded


def _discard_lines(
    keys: Keys, queue: str, unless_consumed_for: float | None = None
) -> Plan[tuple[int, int]]:
    """Return how many tasks were discarded, and 0; below 0 if a worker consumes the queue."""
    names = list(keys.queue(queue))
    args: list[Argument] = ["", DISCARD_BATCH_SIZE]
    if unless_consumed_for is not None:
        names.append(keys.temporary_queues)
        args.append(to_us(unless_consumed_for))
    names.append(keys.totals())
    discarded, left = 0, 1
    while left > 0:
        count, left = yield Call(script("discard"), names, args)
        discarded += count
    return discarded, left


def recall_call(keys: Keys, ids: Sequence[Argument]) -> Call:
    """Return the call that returns tasks in quarantine to their lines."""
    return Call(script("recall_quarantined"), [keys.quarantine, keys.totals()], ["", *ids])
