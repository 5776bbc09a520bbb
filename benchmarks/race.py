"""What people limit tasks with today: each with the same load, on a server of the same kind.

Each side has two prefork workers with two processes each, and 1,000 no-op tasks that are sent at
once. 100 tasks a second are intended, for both workers together:

``rate_limit="100/s"``
    Celery's own, as it is often written. Each worker enforces it for itself.
``rate_limit="50/s"``
    The same, divided by the number of workers.
``rate_limit="100/s", gevent``
    The first on two workers of ten greenlets, whose timers are not late: the event loop of prefork
    workers fires those of ``rate_limit`` up to seconds late, see ``docs/how-to/pools.md``.
``retry recipe``
    ``before_start`` asks a global limit, then ``self.retry(countdown=retry_after)``.
``courtlistener``, ``pass-culture``
    The patterns of these two projects, see ``apps/``.
``celery-heimdall``
    1.0, with ``RateLimit((100, 1))``. It comes with the extra ``bench``.
``celery-throttle``
    0.1.0b1 of PyPI, with ``100/1s``, and its dispatcher as it is started by default (an interval of
    0.1 s), and with an interval of 1 ms. Its package is named ``celery_throttle``, as ours is, so
    both cannot be installed in one environment. It is left out unless ``OTHER_CELERY_THROTTLE``
    names a directory that it was installed in::

        pip install --target DIR --ignore-requires-python celery-throttle==0.1.0b1

    It asks for Python 3.12; 3.11 runs it as well.
``pydocket``
    Another task system: two workers with two tasks at once each, which look for tasks every 10 ms,
    and ``RateLimit(100)`` a second. It comes with the extra ``bench``.
``BullMQ``
    Another one, for Node.js: two workers with two jobs at once each, one job per 10 ms. It is left
    out unless ``BULLMQ`` names a folder in which ``npm install bullmq ioredis`` has been run.

*Quota used* is the time that 100 tasks a second need, over the time from the first start to the
last: more than 1 is over the limit. *Fullest second* is the most starts in a closed interval of one
second; 101 are within the limit. *Deliveries* are messages that workers got from the broker.
*Failed* are tasks that ended without running. *Processor time* is that of the server, which is the
broker and keeps the limits, from sending to the last start.

*Plain tasks* have no limit and go into the same queue: 2,000 limited tasks are sent at once, and
three seconds later 50 plain ones, 40 ms apart. Their latency runs from just before the message is
put into the broker to the first line of the task's body. *Alone* is plain Celery with nothing else
in its queue.

Sides that start far fewer than 100 tasks a second get fewer tasks, see ``Side.share``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from benchmarks.paced import State, cost_between, measure_bullmq, state_of
from benchmarks.probes import measure_latencies
from benchmarks.quota import fullest, used
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import ROOT, Stage, Worker, ready, wait_until
from celery_throttle.limits.limit import Limit

LIMIT = "100/s"

#: Seconds between two probes, at least and at most.
PAUSE = (0.04, 0.04)

#: Where celery-throttle of PyPI is installed.
OTHER = "OTHER_CELERY_THROTTLE"

#: Plain Celery with nothing else in its queue; and the app of pydocket.
ALONE, DOCKET = "plain tasks alone", "docket"


@dataclass(frozen=True, slots=True)
class Side:
    """One way to limit tasks.

    Attributes:
        app: of the workers, in `benchmarks.apps`.
        limit: of the tasks.
        interval: of the dispatcher, in seconds; without one, tasks are sent to the broker.
        share: of the limited tasks that it gets.
        pool: of the workers: two processes, or ten greenlets.
    """

    name: str
    app: str
    limit: str = LIMIT
    interval: float | None = None
    share: float = 1.0
    pool: str = "prefork"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one side."""

    used: float
    fullest: int
    us: float  #: processor time of the server a task
    deliveries: float | None = None
    failed: int = 0
    latencies: Sequence[float] = ()


def run(options: Options) -> Result:
    """Measure each side."""
    tasks, waiting, settle = options.pick(1000, 300), options.pick(2000, 600), options.pick(3, 1)
    outcomes = {}
    for side in _sides(options):
        options.say(f"race: {side.name}")
        outcome = _drain(side, int(tasks * side.share))
        if side.app != DOCKET:  # another system, beside which no task of Celery runs
            latencies = _latencies(side, int(waiting * side.share), settle)
            outcome = replace(outcome, latencies=latencies)
        outcomes[side.name] = outcome
    bullmq = measure_bullmq(options)
    if bullmq is not None:
        outcomes["BullMQ"] = Outcome(bullmq.used, bullmq.fullest, bullmq.us)
    options.say("race: plain tasks alone")
    alone = _latencies(Side(ALONE, "plain"), 0, 0)
    figures = [figure for name, one in outcomes.items() for figure in _figures(name, one)]
    return Result(name="race", theirs="", figures=[*figures, *_plain_tasks(f"{ALONE}: ", alone)])


def _sides(options: Options) -> Iterator[Side]:
    yield Side("celery_throttle", "ours")
    yield Side('rate_limit="100/s"', "own_rate_limit", share=0.2)
    yield Side('rate_limit="50/s"', "own_rate_limit", limit="50/s", share=0.2)
    yield Side('rate_limit="100/s", gevent', "own_rate_limit", pool="gevent")
    yield Side("retry recipe", "recipe")
    yield Side("courtlistener", "courtlistener")
    yield Side("pass-culture", "pass_culture")
    if find_spec("celery_heimdall"):
        yield Side("celery-heimdall", "heimdall")
    else:
        options.say("race: celery-heimdall is not installed, and left out")
    if find_spec("docket"):
        yield Side("pydocket", DOCKET)
    else:
        options.say("race: pydocket is not installed, and left out")
    if os.environ.get(OTHER):
        yield Side("celery-throttle, interval 0.1 s", "plain", interval=0.1, share=0.2)
        yield Side("celery-throttle, interval 1 ms", "plain", interval=0.001)
    else:
        options.say(f"race: {OTHER} is not set: celery-throttle of PyPI is left out")


def _figures(name: str, one: Outcome) -> Iterator[Figure]:
    yield Figure(f"{name}: quota used", "", one.used)
    yield Figure("  fullest second, starts", "", one.fullest)
    yield Figure("  processor time of the server a task", "us", one.us)
    if one.deliveries is not None:
        yield Figure("  deliveries a task", "", one.deliveries)
        yield Figure("  failed tasks", "", one.failed)
    if one.latencies:
        yield from _plain_tasks("  ", one.latencies)


def _plain_tasks(prefix: str, latencies: Sequence[float]) -> Iterator[Figure]:
    yield Figure(f"{prefix}plain tasks, median", "ms", _ms(latencies))
    yield Figure("  plain tasks, p99", "ms", _ms(latencies, 0.99))


def _ms(latencies: Sequence[float], share: float = 0.5) -> float:
    return percentile(latencies, share) * 1e3


def _drain(side: Side, tasks: int) -> Outcome:
    """Run the tasks."""
    with Stage(api=side.limit, watch=True) as stage, _sent(side, stage, tasks) as (workers, before):

        def count(kind: str) -> int:
            return sum(worker.count(kind) for worker in workers)

        wait_until(lambda: count("starts") + count("failures") >= tasks, f"{tasks} starts")
        cost = cost_between(before, state_of(stage.store), tasks)
        starts = sorted((m for w in workers for m in w.marks()), key=lambda mark: mark.time)
        deliveries, failed = count("deliveries") / tasks, count("failures")
    times = [mark.time for mark in starts]
    share = used(starts, Limit.parse(LIMIT))
    return Outcome(share, fullest(times), cost.us, deliveries or None, failed)


def _latencies(side: Side, tasks: int, settle: float) -> list[float]:
    """Return the latencies of plain tasks while the others wait."""
    with Stage(api=side.limit) as stage, _sent(side, stage, tasks) as (workers, _):
        time.sleep(settle)
        return measure_latencies(stage, workers, PAUSE)


@contextlib.contextmanager
def _sent(side: Side, stage: Stage, tasks: int) -> Iterator[tuple[list[Worker], State]]:
    """Start the workers, then send them the limited tasks; yield the state of the server before."""
    size = 2 if side.pool == "prefork" else 10
    program = (sys.executable, "-m", f"benchmarks.apps.{DOCKET}") if side.app == DOCKET else ()
    workers = [
        stage.worker(side.app, processes=size, pool=side.pool, program=program) for _ in range(2)
    ]
    ready(workers)
    before = state_of(stage.store)
    if program:
        env = {**os.environ, "BENCHMARK": json.dumps(stage.settings())}
        subprocess.run((*program, str(tasks)), cwd=ROOT, env=env, check=True)
        yield workers, before
    elif side.interval is None:
        stage.send("limited", tasks)
        yield workers, before
    else:
        with _dispatcher(stage, tasks, side.interval):
            yield workers, before


@contextlib.contextmanager
def _dispatcher(stage: Stage, tasks: int, interval: float) -> Iterator[None]:
    """Run the dispatcher of celery-throttle, which has submitted the tasks."""
    packages = os.environ[OTHER]
    process = subprocess.Popen(
        (sys.executable, "-m", "benchmarks.apps.dispatcher", str(tasks), str(interval)),
        cwd=packages,  # Python looks there first, and must not find our package
        env={
            **os.environ,
            "BENCHMARK": json.dumps(stage.settings()),
            "PYTHONPATH": os.pathsep.join((packages, str(ROOT))),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if process.stdout is None or process.stdout.readline() != "ready\n":
            raise RuntimeError("the dispatcher of celery-throttle did not start")
        yield
    finally:
        process.kill()
        process.wait()
