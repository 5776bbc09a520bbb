"""Tasks of many keys that are due at once, in one worker of each pool: whether all processes work.

There is one task for each of 10,000 keys. They wait while their limit is paused, and are all due
when the pause ends. Beside them a worker of plain Celery with the same pool takes as many tasks
from its queue: that is what the pool can run. The two run in turn, with as many tasks in each round
as both get at once; the median of the rounds counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

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


def run(options: Options) -> Result:
    """Measure each pool."""
    figures = [figure for pool, size in POOLS for figure in _figures(pool, size, options)]
    return Result("keys", "a worker of plain Celery with the same pool", figures)


def _figures(pool: str, size: int, options: Options) -> Iterator[Figure]:
    keys, rounds = options.pick(10_000, 1_000), options.pick(3, 1)
    options.say(f"keys: {pool} {size}, {keys} of them due at once")
    ours, plain = _all_due(pool, size, keys, rounds)
    ratios = [mine / its for mine, its in zip(ours, plain, strict=True)]
    name = f"{pool} {size}: tasks a second"
    yield Figure(name, "", median(ours), median(plain))
    yield Figure("  ratio", "", median(ratios), at_least=0.97, rounds=ratios)


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
