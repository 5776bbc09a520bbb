"""The rate at which a worker parks tasks, beside the rate at which plain Celery runs them.

One prefork worker with two processes on a limit that is used up, and one of plain Celery; both get
the same numbers of no-op tasks in batches, see ``rounds.py``. A park is counted at its signal
(``task_throttled``, in the worker's main process), a task of plain Celery at its start.
"""

from __future__ import annotations

from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.rounds import Side, one_round
from benchmarks.stage import Stage, ready

TASKS = 5_000


def run(options: Options) -> Result:
    """Run the rounds."""
    rounds = []
    with Stage(api="1/h") as stage:
        sides = [
            Side(stage.worker("ours", "ours"), "ours", "limited", kind="parks"),
            Side(stage.worker("plain", "plain"), "plain", "free"),
        ]
        ready(side.worker for side in sides)
        # The limit admits one task, which is never parked: send it before the batches.
        stage.send("limited", 1, "ours")
        sides[0].worker.wait_for(1)
        one_round(stage, sides, 1_000)
        for number in range(options.pick(3, 1)):
            options.say(f"parks: round {number + 1}")
            rounds.append(one_round(stage, sides, TASKS))
    ratios = [parks.beside(plain) for parks, plain in rounds]
    return Result(
        name="parks",
        theirs="plain Celery runs the same tasks",
        figures=[
            Figure(
                "tasks parked a second",
                "1/s",
                median(parks.rate for parks, _ in rounds),
                median(plain.rate for _, plain in rounds),
            ),
            Figure("parked a second, of plain Celery's starts", "", median(ratios), rounds=ratios),
            Figure(
                "processor time a task, main process",
                "us",
                median(parks.cost for parks, _ in rounds) * 1e6,
                median(plain.cost for _, plain in rounds) * 1e6,
            ),
        ],
    )
