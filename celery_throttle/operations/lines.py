"""Plans about the tasks in lines: which queues have some; withdraw them; discard them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import FAN_OUT_NAME, Keys
from celery_throttle.store.script import Argument, Call, script

#: The cursor that ends a scan.
END = b"0"


def limit_names(keys: Keys, now: Argument = "") -> Plan[tuple[int, list[str]]]:
    """Return the server's time in microseconds, and the names of all limits that it knows."""
    names: dict[str, None] = {}
    first_time, cursor = 0, b""
    while cursor != END:
        call = Call(script("list_names"), [keys.names], [now, cursor or "0"])
        server_time, cursor, found = yield call
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


def quarantined_queues(keys: Keys) -> Plan[list[str]]:
    """Return the queues, each with its broker, of tasks that are in quarantine."""
    queues: dict[str, None] = {}
    head, cursor = keys.queue("").lines, b""
    while cursor != END:
        call = Call(script("list_quarantined"), [keys.quarantine], [cursor or "0"])
        cursor, rows = yield call
        queues.update((lines.decode().removeprefix(head), None) for _, _, lines in rows)
    return list(queues)


class Claimant(NamedTuple):
    """A holder of claims."""

    name: str
    lease: float  #: seconds after which its claims are requeued if it dies


@dataclass(frozen=True, slots=True)
class WithdrawPlans:
    """The calls and plans for the tasks that need one limit.

    Attributes:
        keys: names of keys in Redis.
        ref: the limit: one key of it, or without a key all of them. None: tasks of any limit.
        now: microseconds; the server's time by default.
    """

    keys: Keys
    ref: LimitRef | None
    now: Argument = ""

    @property
    def _filter(self) -> tuple[str, str]:
        """The arguments by which scripts tell which tasks need the limit."""
        if self.ref is None:
            return "", ""
        return self.ref.name, "" if self.ref.key is None else self.keys.field(self.ref)

    def lines(self, queue: str) -> Plan[dict[str, int]]:
        """Return the lines of a queue, and how many tasks wait in each."""
        lines: dict[str, int] = {}
        names, cursor = [self.keys.queue(queue).lines], b""
        while cursor != END:
            args = [cursor or "0", *self._filter]
            cursor, *found = yield Call(script("list_lines"), names, args)
            lines.update(
                (line.decode(), count) for line, count in zip(found[::2], found[1::2], strict=True)
            )
        return lines

    def count_quarantined(self, queue: str) -> Plan[int]:
        """Return the number of tasks of a queue that are in quarantine."""
        count, cursor = 0, b""
        while cursor != END:
            cursor, found, *_ = yield self.quarantined_call(
                Claimant("", 0.0), queue, cursor or "0", first_token=0
            )
            count += found
        return count

    def count_claims(self) -> Plan[int]:
        """Return the number of tasks that are claimed, by workers for example."""
        count = 0
        for name in (yield Call(script("list_claimants"), [self.keys.workers])):
            claims, cursor = self.keys.claims(name.decode()), b""
            while cursor != END:
                args = [cursor or "0", *self._filter]
                cursor, found = yield Call(script("count_claims"), [claims], args)
                count += found
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
        """Return the call that claims some tasks of a queue that are in quarantine.

        A claimant without a name only counts them. See ``withdraw_quarantined.lua``.
        """
        keys, name = self.keys, claimant.name
        names = [keys.workers, keys.claims(name), keys.quarantine, keys.queue(queue).lines]
        args = [self.now, name, to_us(claimant.lease), first_token, cursor, *self._filter]
        return Call(script("withdraw_quarantined"), names, args)


#: The number of tasks that one call discards at most; the server does nothing else meanwhile.
DISCARD_BATCH_SIZE = 500

_END = b"0"


def discard(keys: Keys, queue: str, *, unless_consumed_for: float | None = None) -> Plan[int]:
    """Discard the tasks in the lines of a queue; return how many were discarded.

    Claimed tasks are not discarded, as a broker does not discard delivered messages. If the plan is
    interrupted, running it again completes it.

    ``unless_consumed_for``: discard only the tasks of a queue that the broker deletes with its last
    consumer, and that no worker has reported for so many seconds; see ``heartbeat.lua``.
    """
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
    cursor: Argument = "0" if left == 0 else _END
    while cursor != _END:
        names = [keys.quarantine, keys.queue(queue).lines]
        cursor, count = yield Call(script("discard_quarantined"), names, ["", cursor])
        discarded += count
    return discarded
