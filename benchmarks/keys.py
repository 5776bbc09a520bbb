"""Many keys in one worker of each pool: whether a task starts as soon as its limit allows it.

*Paced*: 20 tasks for each of 100 keys under 2/s a key, or 2,000 under one limit of 200/s, sent at
once. The share of the quota that is used is the time that the limit needs for the tasks of a key
after its first, over the time from the first start to the last; the mean of all keys.

*All due*: one task for each of 10,000 keys. They wait while their limit is paused, and are all due
when the pause ends. Beside them a worker of plain Celery with the same pool takes as many tasks
from its queue: that is what the pool can run. The two run in turn, with as many tasks in each round
as both get at once; the median of the rounds counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from benchmarks.marks import Mark
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, Worker, ready, wait_until
from celery_throttle import Limiter

#: Pools, and how many tasks each runs at once.
POOLS = (
    ("prefork", 1),
    ("prefork", 8),
    ("solo", 1),
    ("threads", 1),
    ("threads", 8),
    ("gevent", 8),
    ("eventlet", 8),
)

#: Tasks a second that the paced loads allow.
RATE = 200


def run(options: Options) -> Result:
    """Measure each pool."""
    figures = [figure for pool, size in POOLS for figure in _figures(pool, size, options)]
    return Result("keys", "a worker of plain Celery with the same pool", figures)


def _figures(pool: str, size: int, options: Options) -> Iterator[Figure]:
    for keys in (1, 100):
        options.say(f"keys: {pool} {size}, {keys} of them")
        used = _paced(pool, size, keys, options.pick(10, 4))
        name = f"{pool} {size}: quota used, {keys} x {RATE // keys}/s"
        yield Figure(name, "", used, at_least=0.97)
    keys, rounds = options.pick(10_000, 1_000), options.pick(3, 1)
    options.say(f"keys: {pool} {size}, {keys} of them due at once")
    ours, plain = _all_due(pool, size, keys, rounds)
    ratios = [mine / its for mine, its in zip(ours, plain, strict=True)]
    yield Figure(
        f"  {keys} keys due at once", "plain", median(ratios), 1, at_least=0.97, rounds=ratios
    )
    yield Figure("  tasks a second", "", median(ours), median(plain))


def _paced(pool: str, size: int, keys: int, seconds: int) -> float:
    names = [f"t{number}" for number in range(keys)]
    rate = RATE // keys
    each = rate * seconds
    with Stage(tenant=f"{rate}/s", own_store=True) as stage:
        worker = stage.worker("ours", processes=size, pool=pool)
        ready([worker])
        _warm(stage, worker, "celery")
        before = worker.count()
        ids = stage.send("keyed", keys * each, keys=names)
        worker.wait_for(before + len(ids))
        starts = defaultdict(list)
        key_of = {task_id: number % keys for number, task_id in enumerate(ids)}
        for mark in worker.marks(skip=before):
            starts[key_of[mark.task_id]].append(mark.time)
    return fmean((each - 1) / rate / (times[-1] - times[0]) for times in starts.values())


def _all_due(
    pool: str, size: int, keys: int, rounds: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Tasks a second in each round, ours and those of plain Celery."""
    ours: list[float] = []
    plain: list[float] = []
    with Stage(tenant="1/h", own_store=True) as stage:
        mine = stage.worker("ours", "ours", processes=size, pool=pool)
        other = stage.worker("plain", "plain", processes=size, pool=pool)
        ready([mine, other])
        for worker, queue in ((mine, "ours"), (other, "plain")):
            _warm(stage, worker, queue)
        limiter = Limiter(stage.store_url, {"tenant": "1/h"})
        for number in range(rounds):
            # Nobody has used these keys before.
            names = [f"t{number}-{key}" for key in range(keys // rounds)]
            plain.append(_drain(stage, other, names))
            limiter["tenant"].pause(3600)
            stage.send("keyed", len(names), "ours", keys=names)
            wait_until(lambda: stage.waiting("ours") == len(names), "all to wait")  # noqa: B023  # called here only
            before = mine.count()
            limiter["tenant"].reset()
            mine.wait_for(before + len(names))
            ours.append(_speed(mine.marks(skip=before)))
        limiter.store.close()
    return ours, plain


def _drain(stage: Stage, worker: Worker, names: Sequence[str]) -> float:
    before = worker.count()
    stage.send("keyed", len(names), "plain", keys=names)
    worker.wait_for(before + len(names))
    return _speed(worker.marks(skip=before))


def _warm(stage: Stage, worker: Worker, queue: str) -> None:
    """The first tasks of a worker are slow."""
    stage.send("free", 50, queue)
    worker.wait_for(50)


def _speed(marks: Sequence[Mark]) -> float:
    return (len(marks) - 1) / (marks[-1].time - marks[0].time)
