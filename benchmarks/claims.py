"""Time of a claim and of a decision, with many tasks in one line, and with many lines at one limit.

Each claim takes one task with its quota, and settles the previous one. It is timed with 1,000,000
tasks in a line and, alternately, with 1,000 (theirs) in a line of the same server, under another
prefix; and likewise with 100,000 lines of two tasks, one line for each tenant, that wait at a
shared limit, and with 1,000 such lines. A claimed task is parked again before the next claim, so
the number of waiting tasks stays the same. A decision is ``limiter["api"].try_acquire()``, and is
allowed. Figures are medians of single calls, client included.

Tasks are parked by the script that workers call, with messages of 300 bytes, without workers. In a
long line the first task is parked so, and the others are copies, see ``copies.lua``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.lines import Claimant, park
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import LINES, Stage
from celery_throttle import Limiter
from celery_throttle.limits.key import ItemLike, LimitRef
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call, script

TURNS, CALLS = 20, 100
FEW = 1_000
LIMITS = {"api": "1000000/s burst 1000000", "tenant": "1000000/s burst 1000000"}
BAR = 1.3

#: Parks of one pipeline, and copies of one call.
BATCH_SIZE = 10_000


def run(options: Options) -> Result:
    """Fill the lines, then time the calls."""
    tasks, lines = options.pick(1_000_000, 50_000), options.pick(100_000, 10_000)
    with Stage() as stage:
        options.say(f"claims: {tasks:,} tasks go into a line")
        few, many = _WaitingTasks(stage, "{few}", 1), _WaitingTasks(stage, "{many}", 1)
        few.fill(FEW)
        many.fill(tasks)
        options.say("claims: timing")
        in_line = _times([few, many])
    with Stage() as stage:
        options.say(f"claims: {lines:,} lines at one limit")
        few, many = _WaitingTasks(stage, "{few}", FEW), _WaitingTasks(stage, "{many}", lines)
        few.fill(2)
        many.fill(2)
        options.say("claims: timing")
        at_limit = _times([few, many])
    return Result(
        name="claims",
        theirs=f"the same with {FEW:,}",
        figures=[
            *_figures(f"{tasks:,} tasks in a line", *in_line),
            *_figures(f"{lines:,} lines at one limit", *at_limit),
        ],
    )


def _figures(what: str, claims: Sequence[float], decisions: Sequence[float]) -> Iterator[Figure]:
    for call, (few, many) in (("claim", claims), ("decision", decisions)):
        yield Figure(f"{call}, {what}", "us", many, few)
        yield Figure(f"{call}, {what}, ratio", "", many / few, at_most=BAR)


class _WaitingTasks:
    """Tasks of some tenants that wait at a shared limit, under a prefix of their own."""

    def __init__(self, stage: Stage, prefix: str, tenants: int) -> None:
        self._server = stage.store
        self._keys = Keys(prefix)
        self._limiter = Limiter(stage.store_url, LIMITS, prefix=prefix)
        self._limiter.register()
        self._claimant = Claimant(self._limiter)
        self._tenants = tenants
        self._refs = (LimitRef("api", None), LimitRef("tenant", "0"))
        self._sent = 0
        self._settled: list[int] = []
        self._parked: list[str] = []

    def fill(self, tasks: int) -> None:
        """Park this number of tasks of each tenant.

        Raises:
            RuntimeError: not all of them wait.
        """
        parked = tasks if self._tenants > 1 else 1
        with self._server.pipeline(transaction=False) as pipe:
            pipe.script_load(script("park").source.decode())
            for number in range(self._tenants * parked):
                call = self._park(number % self._tenants)
                pipe.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
                if len(pipe) >= BATCH_SIZE:
                    pipe.execute()
            pipe.execute()
        self._copy(tasks - parked)
        waiting = self._server.hlen(self._keys.queue(LINES).messages)
        if waiting != self._tenants * tasks:
            raise RuntimeError(f"{waiting} tasks wait, not {self._tenants * tasks}")

    def _copy(self, count: int) -> None:
        source = (Path(__file__).parent / "copies.lua").read_text(encoding="utf-8")
        copies = self._server.register_script(source)
        line = self._keys.line(LINES, self._refs)
        messages, backlog = self._keys.queue(LINES).messages, self._keys.backlog(self._refs[0])
        for first in range(1, count + 1, BATCH_SIZE):
            numbers = [first, min(first + BATCH_SIZE - 1, count)]
            copies(keys=[line, messages, backlog], args=numbers)

    def _park(self, tenant: int) -> Call:
        """Return the call by which a worker without a free process parks a task."""
        self._sent += 1
        task_id = f"{tenant} {self._sent}"
        acknowledged, self._parked = self._parked, [task_id]
        items: list[ItemLike] = ["api", ("tenant", str(tenant))]
        return park(self._limiter, items, task_id, acknowledged=acknowledged)

    def claim(self) -> float:
        """Claim a task, then park it again; return the seconds of the claim."""
        seconds, row = self._claimant.claim(self._settled)
        self._settled = [self._claimant.token]
        tenant, _, number = row[5].partition(b" ")
        self._limiter.store.run(self._park(int(tenant) if number else 0))
        return seconds

    def decide(self) -> float:
        """Return the seconds of a decision."""
        began = time.perf_counter()
        decision = self._limiter["api"].try_acquire()
        seconds = time.perf_counter() - began
        if not decision:
            raise RuntimeError("the limit binds")
        return seconds


def _times(sides: Sequence[_WaitingTasks]) -> tuple[list[float], list[float]]:
    """Return the median microseconds of a claim, and of a decision, of each side."""
    return _time([side.claim for side in sides]), _time([side.decide for side in sides])


def _time(calls: Sequence[Callable[[], float]]) -> list[float]:
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, seconds in zip(calls, took, strict=True):
            seconds += [call() for _ in range(CALLS)]
    return [median(seconds) * 1e6 for seconds in took]
