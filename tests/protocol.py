"""The scripts of lines and claims called directly, at times passed in, and their invariants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

from celery_throttle.keys import Keys
from celery_throttle.limiter import Reference, as_refs
from celery_throttle.limits import Limit
from celery_throttle.plans import Plans, Want
from celery_throttle.scripts import Call, script
from celery_throttle.store import Store
from celery_throttle.testing import ManualClock

SECOND = 1_000_000
FOREVER = -1


@dataclass
class Parked:
    """What ``park.lua`` replied."""

    outcome: str
    position: int = 0
    expected: int = 0
    wait: int = 0


@dataclass
class Claimed:
    """One row that ``claim.lua`` or ``withdraw.lua`` replied."""

    token: int
    admitted: bool
    starts: int
    waited: int
    message: bytes
    id: str


@dataclass
class Protocol:
    """Workers and queues without Celery: every call says what time it is."""

    url: str
    limits: dict[str, str]
    now: int = 1_000 * SECOND
    keys: Keys = field(default_factory=Keys)
    tokens: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.store = Store(self.url)
        self.client: Any = redis.Redis.from_url(self.url)  # its stubs mix sync and async replies
        self.plans = Plans(
            {name: Limit.parse(text) for name, text in self.limits.items()}, self.keys
        )
        self._run(self.plans.register(self.plans.limits))

    def _run(self, plan: Any) -> None:
        for call in plan:
            self.store.run(call)

    def define(self, name: str, text: str) -> None:
        ref = as_refs([name])[0]
        args: list[Any] = [self.now, "set", name, name, Limit.parse(text).definition()]
        self.store.run(Call(script("define"), [self.keys.limits, self.keys.state(ref)], args))
        self.store.run(Call(script("touch"), [self.keys.waits(name)], [self.now, "0"]))

    def gate_call(self, tasks: Sequence[tuple[Sequence[Reference], int]]) -> Call:
        wants = [Want(as_refs(limits), cost) for limits, cost in tasks]
        plans = Plans(self.plans.limits, self.keys, ManualClock(self.now))
        return plans.gate_call(wants, 20_000)

    def park(
        self,
        task_id: str,
        limits: Sequence[Reference],
        *,
        queue: str = "q",
        cost: int = 1,
        rank: int = 0,
        expires: int = 0,
        max_wait: int = FOREVER,
        redelivered: bool = False,
        acknowledged: Sequence[str] = (),
        message: bytes = b"message",
    ) -> Parked:
        keys, refs = self.keys, as_refs(limits)
        names = [keys.limits, keys.parks, keys.line(queue, refs), *keys.queue(queue)]
        args: list[Any] = [self.now, task_id, f"{task_id} 0 0", int(redelivered), rank, expires]
        args += [max_wait, 60 * SECOND, message, len(refs)]
        for ref in refs:
            names += [*keys.decision(ref), keys.waiting(queue, ref), keys.waits(ref.name)]
            args += [ref.name, keys.field(ref), cost]
        outcome, *about = self.store.run(Call(script("park"), names, [*args, *acknowledged]))
        if outcome == b"parked":
            position, expected, _, wait = about
            return Parked("parked", position, expected, wait)
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
    ) -> list[Claimed]:
        keys = self.keys
        names = [keys.limits, keys.parks, keys.workers, keys.claims(worker)]
        for queue in queues:
            names += keys.queue(queue)
        first = self.tokens[worker] + 1
        self.tokens[worker] += room
        args: list[Any] = [
            self.now,
            worker,
            keys.channel(worker),
            lease,
            room,
            ahead,
            first,
            SECOND,
        ]
        args += [len(settled), *settled]
        self.ask, self.dead, *rows = self.store.run(Call(script("claim"), names, args))
        return [self._row(row) for row in rows]

    def withdraw(self, worker: str, *ids: str, queue: str = "q") -> list[Claimed]:
        names = [self.keys.workers, self.keys.claims(worker), *self.keys.queue(queue)]
        first = self.tokens[worker] + 1
        self.tokens[worker] += len(ids)
        args: list[Any] = [self.now, worker, 30 * SECOND, first, *ids]
        rows = self.store.run(Call(script("withdraw"), names, args))
        return [self._row(row) for row in rows]

    def back(self, worker: str, which: str, *tokens: int, most: int = 100) -> int:
        names = [self.keys.workers, self.keys.claims(worker)]
        args: list[Any] = [self.now, worker, which, most, *tokens]
        left: int = self.store.run(Call(script("back"), names, args))
        return left

    @staticmethod
    def _row(row: list[Any]) -> Claimed:
        token, kind, starts, waited, message, task_id = row
        return Claimed(token, kind == 1, starts, waited, message, task_id.decode())

    def drain(self, seconds: float, *, step: int = 1_000, room: int = 10) -> list[tuple[int, str]]:
        """What one worker that asks every millisecond takes: time and task id."""
        taken = []
        for _ in range(round(seconds * SECOND / step)):
            claims = self.claim(room=room)
            taken += [(self.now + claim.starts, claim.id) for claim in claims]
            self.claim(room=0, settled=[claim.token for claim in claims])
            self.now += step
        return taken

    def waiting(self) -> list[str]:
        """Ids of all tasks that wait."""
        found = self.client.keys("{throttle}:messages:*")
        return sorted(one.decode() for key in found for one in self.client.hkeys(key))

    def check(self) -> None:
        """What must hold between any two calls."""
        client = self.client
        lines = {
            line: queue.decode().replace(":lines:", ":messages:")
            for queue in client.keys("{throttle}:lines:*")
            for line in client.hkeys(queue)
        }
        places = Counter(
            line
            for key in client.keys("{throttle}:waiting:*")
            for line in client.lrange(key, 0, -1)
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
        waits = [one for key in client.keys("{throttle}:waits:*") for one in client.hkeys(key)]
        assert sorted(waits) == sorted(due)
        backlog = sum(int(client.get(key)) for key in client.keys("{throttle}:backlog:*"))
        assert backlog == sum(tasks.values())
