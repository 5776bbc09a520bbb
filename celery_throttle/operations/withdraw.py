"""Calls and plans that take waiting tasks out of their lines for good.

Tasks are claimed without quota, like revoked ones, by a claimant with a lease of its own. So they
are requeued like those of a worker if the claimant dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from celery_throttle.limits.duration import to_us
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.waiting_queues import END
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Argument, Call, script


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
