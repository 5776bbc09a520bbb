"""Concurrency: ten tasks at once, over four workers with four processes each.

500 tasks of 50 ms under "10 at once"; the time runs from the first start to the last end. Beside it
the same tasks without a limit on one worker of plain Celery whose pool has exactly ten processes:
that is what Celery can do of what would be ten in each 50 ms, since it takes its own time between
two tasks of a process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from benchmarks.marks import Mark
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, Worker, ready, wait_until

TASKS = 500
SLOTS = 10
SECONDS = 0.05


def run(options: Options) -> Result:
    """Run both sides in turn."""
    tasks = options.pick(TASKS, 100)
    ours: list[tuple[float, int]] = []
    plain: list[tuple[float, int]] = []
    with Stage(api=f"{SLOTS} at once") as stage:
        four = [stage.worker("ours", "ours", processes=4) for _ in range(4)]
        one = [stage.worker("plain", "plain", processes=SLOTS)]
        ready([*four, *one])
        _drain(stage, four, "ours", 50)  # the first tasks of a process are slow
        _drain(stage, one, "plain", 50)
        for number in range(options.pick(7, 1)):
            options.say(f"slots: round {number + 1}")
            ours.append(_drain(stage, four, "ours", tasks))
            plain.append(_drain(stage, one, "plain", tasks))
    shares = [(one, other) for (one, _), (other, _) in zip(ours, plain, strict=True)]
    ratios = [one / other for one, other in shares]
    return Result(
        name="slots",
        theirs="plain Celery with a pool of ten processes",
        figures=[
            Figure("throughput", "plain", median(ratios), 1, at_least=0.95, rounds=ratios),
            Figure(
                "throughput, of ten in each 50 ms",
                "",
                median(one for one, _ in shares),
                median(other for _, other in shares),
            ),
            Figure(
                "most tasks at once",
                "",
                max(most for _, most in ours),
                max(most for _, most in plain),
                at_most=SLOTS,
            ),
        ],
    )


def _drain(stage: Stage, workers: Sequence[Worker], queue: str, tasks: int) -> tuple[float, int]:
    """Send tasks and wait for them: the share of what is possible, and the most at once."""
    before = [(worker.count("starts"), worker.count("ends")) for worker in workers]
    goal = sum(ends for _, ends in before) + tasks
    stage.send("held", tasks, queue)
    wait_until(lambda: sum(worker.count("ends") for worker in workers) >= goal, f"{tasks} tasks")
    starts: list[Mark] = []
    ends: list[Mark] = []
    for worker, (old_starts, old_ends) in zip(workers, before, strict=True):
        starts += worker.marks("starts", old_starts)
        ends += worker.marks("ends", old_ends)
    took = max(mark.time for mark in ends) - min(mark.time for mark in starts)
    changes = sorted([(mark.time, 1) for mark in starts] + [(mark.time, -1) for mark in ends])
    return tasks * SECONDS / SLOTS / took, max(accumulate(change for _, change in changes))
