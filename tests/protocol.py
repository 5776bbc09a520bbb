"""Calls the scripts of lines and claims directly, at given times, and checks their invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any

import redis

from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.key import ItemLike, parse_item
from celery_throttle.limits.requirement import Costs, LimitsLike, Requirement
from celery_throttle.operations.acquire import GateRequest, Taken, gate_call, read_takes
from celery_throttle.operations.waiting import (
    ClaimStatus,
    Kept,
    LineTasks,
    Mode,
    ParkRequest,
    claim_call,
    park_call,
    quarantine_call,
    requeue_call,
    withdraw_call,
)
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.store.script import Call, script
from celery_throttle.testing import ManualClock

SECOND = 1_000_000

#: Where the clocks of tests begin, in microseconds.
START = 1_700_000_000 * SECOND

#: Kinds of keys that lines with tasks have, besides their messages.
LINE_KINDS = ("line", "lines", "due", "waiting", "waiting-lists", "waiting-list-index", "backlog")
FOREVER = -1

#: Seconds for a reply: the default is less than a busy machine may keep a server from replying.
PATIENCE = 30

#: Scores of tasks in lines, and of lines in waiting lists, begin with a rank.
RANK = 2**45


@dataclass
class Parked:
    """The reply of ``park.lua``; ``slots`` are the keys of each slot that was taken."""

    outcome: str
    slots: Sequence[bytes] = ()
    position: int = 0
    expected: int = 0
    wait: int = 0
    takes: Sequence[Taken] = ()


@dataclass
class Claimed:
    """One row of a reply of ``claim.lua`` or ``withdraw.lua``."""

    token: int
    admitted: bool
    starts: int
    waited: int
    message: bytes
    id: str
    slots: Sequence[bytes]
    field: str = ""
    position: int = 0
    takes: Sequence[Taken] = ()
    surplus: bool = False


@dataclass
class Protocol:
    """Workers and queues without Celery; every call has its time as an argument."""

    url: str
    limits: Mapping[str, LimitsLike]
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_000 * SECOND))
    tokens: Counter[str] = field(default_factory=Counter)
    prefix: str = DEFAULT_PREFIX

    def __post_init__(self) -> None:
        self.limiter = Limiter(
            self.url, self.limits, timeout=PATIENCE, clock=self.clock, prefix=self.prefix
        )
        self.store, self.keys = self.limiter.store, self.limiter.keys
        self.client: Any = redis.Redis.from_url(self.url)  # its stubs mix sync and async replies
        self.limiter.register()

    def close(self) -> None:
        self.store.close()
        self.client.close()

    @property
    def now(self) -> int:
        return self.clock.now

    @now.setter
    def now(self, now: int) -> None:
        self.clock.now = now

    def add_worker(self) -> None:
        """Add a worker that lives for a minute of real time, and for ever by the clock."""
        self.client.zadd(self.keys.membership, {"worker": 10**15})
        self.client.expire(self.keys.membership, 60)

    def time(self, seconds: float) -> datetime:
        """Return the time by the clock, some seconds from now."""
        return datetime.fromtimestamp(self.now / SECOND, timezone.utc) + timedelta(seconds=seconds)

    def require(self, limits: Sequence[ItemLike], cost: Costs = 1) -> Requirement:
        """Return the requirement of limits, and of pairs of name and key."""
        return self.limiter.require([parse_item(limit) for limit in limits], cost)

    def gate_call(self, tasks: Sequence[tuple[Sequence[ItemLike], Costs]]) -> Call:
        wants = [GateRequest(self.require(limits, cost)) for limits, cost in tasks]
        return gate_call(self.limiter.plans, wants, 20_000)

    def park(
        self,
        task_id: str,
        limits: Sequence[ItemLike],
        *,
        queue: str = "q",
        identity: str | None = None,
        cost: Costs = 1,
        rank: int = 0,
        expires: int = 0,
        max_wait: int = FOREVER,
        redelivered: bool = False,
        acknowledged: Sequence[str] = (),
        message: bytes = b"message",
        holder: str = "",
        lease: int = 30 * SECOND,
        horizon: int = 0,
        may_run: bool = True,
        mode: Mode | None = None,
        temporary: bool = False,
        settles: bool = False,
        kept: Kept = Kept.ALL,
    ) -> Parked:
        keys, requirement = self.keys, self.require(limits, cost)
        wait = None if max_wait == FOREVER else max_wait / SECOND
        task = ParkRequest(
            task_id,
            message,
            requirement,
            rank=rank,
            expires=expires,
            max_wait=wait,
            mode=Mode(may_run) if mode is None else mode,
            settles=settles,
            identity=f"{task_id} 0 0" if identity is None else identity,
            redelivered=redelivered,
            holder=holder or f"task {task_id}",
        )
        call = park_call(
            keys,
            [LineTasks(queue, [task], temporary=temporary, kept=kept, task_name="task")],
            remember=60.0,
            lease=lease / SECOND,
            horizon=horizon / SECOND,
            acknowledged=acknowledged,
            now=self.now,
        )
        ((outcome, *about),) = self.store.run(call)
        if outcome == b"parked":
            position, expected, _, wait = about
            return Parked("parked", (), position, expected, wait)
        if outcome == b"admitted":
            wait, takes, *slots = about
            return Parked("admitted", slots, wait=wait, takes=read_takes(takes))
        return Parked(outcome.decode())

    def claim(
        self,
        worker: str = "w",
        room: int = 1,
        *,
        queues: Sequence[str] = ("q",),
        ahead: int = 0,
        lease: int = 30 * SECOND,
        settled: Sequence[int] = (),
        released: Sequence[tuple[ItemLike, str]] = (),
        acknowledged: Sequence[str] = (),
        registered: bool = True,
        free: int | None = None,
        moment: int = 0,
        poll_interval: float = 1.0,
    ) -> list[Claimed]:
        keys = self.keys
        first = self.tokens[worker] + 1
        self.tokens[worker] += room
        refs = [(parse_item(reference), holder) for reference, holder in released]
        call = claim_call(
            keys,
            worker,
            [key for queue in queues for key in keys.queue(queue)],
            range(first, first + room),
            lease=lease / SECOND,
            poll_interval=poll_interval,
            free=free,
            horizon=ahead / SECOND,
            soon_free_horizon=moment / SECOND,
            settled=settled,
            releases=[(keys.entries(ref), keys.waiting_lists(ref), holder) for ref, holder in refs],
            acknowledged=acknowledged,
            registered=registered,
            now=self.now,
        )
        self.ask, self.dead, *rows = self.store.run(call)
        return [self._row(row) for row in rows]

    def withdraw(
        self,
        worker: str,
        *ids: str,
        queues: Sequence[str] = ("q",),
        lease: int = 30 * SECOND,
    ) -> list[Claimed]:
        names = [name for queue in queues for name in self.keys.queue(queue)]
        first = self.tokens[worker] + 1
        self.tokens[worker] += len(ids)
        call = withdraw_call(
            self.keys, worker, names, first, ids, lease=lease / SECOND, now=self.now
        )
        rows = self.store.run(call)
        return [self._row(row) for row in rows]

    def back(
        self,
        worker: str,
        which: str,
        *tokens: int,
        most: int = 100,
        status: ClaimStatus = ClaimStatus.DELIVERED,
    ) -> int:
        returned = [(token, status) for token in tokens]
        call = requeue_call(self.keys, worker, which, most, returned, now=self.now)
        left: int = self.store.run(call)
        return left

    def set_aside(self, worker: str, token: int) -> None:
        self.store.run(quarantine_call(self.keys, worker, token, "label", now=self.now))

    def recall(self, *ids: str) -> None:
        self.store.run(
            Call(
                script("recall_quarantined"),
                [self.keys.quarantine, self.keys.totals()],
                [self.now, *ids],
            )
        )

    @staticmethod
    def _row(row: list[Any]) -> Claimed:
        token, kind, starts, waited, message, task_id, *more = row
        field, position, slots, takes = (*(more or (b"", 0)), [], [])[:4]
        return Claimed(
            token,
            kind == 1,
            starts,
            waited,
            message,
            task_id.decode(),
            slots,
            field.decode(),
            position,
            read_takes(takes),
            kind == 2,
        )

    def drain(
        self, seconds: float, *, step: int = 1_000, room: int = 10, ahead: int = 0
    ) -> list[tuple[int, str]]:
        """Claim every millisecond; return the time and id of each task."""
        taken = []
        for _ in range(round(seconds * SECOND / step)):
            claims = self.claim(room=room, ahead=ahead)
            taken += [(self.now + claim.starts, claim.id) for claim in claims]
            self.claim(room=0, settled=[claim.token for claim in claims])
            self.now += step
        return taken

    def waiting(self) -> list[str]:
        """Return the ids of all waiting tasks."""
        found = self.client.keys("{throttle}:messages:*")
        return sorted(one.decode() for key in found for one in self.client.hkeys(key))

    def check(self) -> None:
        """Check the invariants that hold between any two calls."""
        client = self.client
        lines = {
            line: queue.decode().replace(":lines:", ":messages:")
            for queue in client.keys("{throttle}:lines:*")
            for line in client.hkeys(queue)
        }
        places = Counter(
            line
            for key in client.keys("{throttle}:waiting:*")
            for line in client.zrange(key, 0, -1)
        )
        assert set(client.keys("{throttle}:line:*")) == set(lines), "a line that is not known"
        assert places == Counter(list(lines)), "a line waits at exactly one limit"
        tasks = Counter(dict.fromkeys(lines.values(), 0))
        for line, messages in lines.items():
            tasks[messages] += client.zcard(line)
        assert tasks == {
            key.decode(): client.hlen(key) for key in client.keys("{throttle}:messages:*")
        }
        due = [one for key in client.keys("{throttle}:due:*") for one in client.zrange(key, 0, -1)]
        assert sorted(due) == sorted(client.keys("{throttle}:waiting:*")), (
            "a list no claim looks at"
        )
        waits = {key: client.hkeys(key) for key in client.keys("{throttle}:waiting-lists:*")}
        registered = [one for one in due if b":waiting:@surplus/" not in one]
        assert sorted(chain.from_iterable(waits.values())) == sorted(registered)
        waited = [
            (key.split(b":")[2], one)
            for key in client.keys("{throttle}:waiting-list-index:*")
            for one in client.smembers(key)
        ]
        assert sorted(waited) == sorted((key.split(b":")[2], key) for key in waits)
        waiting: Counter[bytes] = Counter()
        for key in client.keys("{throttle}:waiting:*"):
            limit = key.removeprefix(b"{throttle}:waiting:").rpartition(b"/")[0]
            for line, place in client.zrange(key, 0, -1, withscores=True):
                [(_, first)] = client.zrange(line, 0, 0, withscores=True)
                assert place // RANK == first // RANK, "a line is of the rank of its first task"
                waiting[limit] += client.zcard(line) if limit != b"@surplus" else 0
        assert +waiting == {
            key.removeprefix(b"{throttle}:backlog:"): int(client.get(key))
            for key in client.keys("{throttle}:backlog:*")
        }


Make = Callable[[Mapping[str, LimitsLike]], Protocol]


def make_protocols(url: str) -> Iterator[Make]:
    """Make protocols for a test, and close them: the body of a fixture."""
    made: list[Protocol] = []

    def protocol(limits: Mapping[str, LimitsLike]) -> Protocol:
        made.append(Protocol(url, limits))
        return made[-1]

    yield protocol
    for one in made:
        one.close()
