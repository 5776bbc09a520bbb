"""Time of a decision and of a claim with one task waiting and with 100,000.

A decision is ``limiter["api"].acquire()`` from a process of its own, and is allowed. A claim is the
script by which a worker takes a task and its quota; between two claims the task is given back, so
that the number of waiting tasks stays what it is. Theirs is the counter that people write with
redis-py: ``INCR`` and ``EXPIRE`` of a key of the current second, in one pipeline.

Both lines are on one server under prefixes of their own. They are filled by repeating, with other
task ids, the very call with which a worker parked a task. All calls are timed in small turns, one
after the other, and a figure is the median of single calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from uuid import uuid4

from benchmarks.admissions import Monitor
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import QUEUE, Stage, ready, wait_until
from celery_throttle import Limiter
from celery_throttle.keys import Keys
from celery_throttle.scripts import Call, script
from celery_throttle.store import Store

TURN = 100
TURNS = 20
NEVER_BINDS = "1000000/s burst 1000000"


@dataclass(slots=True)
class Line:
    """A line under a prefix of its own, and what its calls took."""

    url: str
    prefix: str
    store: Store = field(init=False)
    keys: Keys = field(init=False)
    limiter: Limiter = field(init=False)
    decisions: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    token: int = 0

    def __post_init__(self) -> None:
        self.store, self.keys = Store(self.url), Keys(self.prefix)
        self.limiter = Limiter(self.url, {"api": NEVER_BINDS}, prefix=self.prefix)

    def decide(self) -> None:
        """Ask the limit."""
        assert self.limiter["api"].acquire()

    def claim(self) -> None:
        """Take a task from the line; see ``lua/claim.lua``."""
        keys, worker = self.keys, "benchmark"
        self.token += 1
        names = [keys.limits, keys.workers, keys.parks, keys.claims(worker)]
        lease, room, ahead, longest, settled = 30_000_000, 1, 20_000, 1_000_000, 0
        args = ["", worker, keys.channel(worker), lease, room, ahead, self.token, longest, settled]
        call = Call(script("claim"), [*names, *keys.queue(QUEUE)], args)
        began = time.perf_counter()
        _, _, row = self.store.run(call)
        self.claims.append(time.perf_counter() - began)
        assert row[0] == self.token
        names = [keys.workers, keys.claims(worker)]
        self.store.run(Call(script("back"), names, ["", worker, "own", 1, self.token]))
