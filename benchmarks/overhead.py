"""What limits that never bind cost: throughput of one worker beside plain Celery's.

No-op tasks on one prefork worker with two processes. Sides: plain Celery; tasks under one limit of
10,000/s (burst 1); tasks under 1,000 keys of one template, 100/s each, given in turn, so that each
is asked for about once a second; and what people use today, which asks the 10,000/s limit in
``before_start``. Each round gives each side 5,000 tasks, see ``rounds.py``. A figure is the median
over the rounds of the ratio to plain Celery in the same round. Beside the throughput, on which all
processes of the machine have a say, stands the processor time of the worker's main process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.rounds import Pace, Side, one_round
from benchmarks.stage import Stage, ready

TASKS = 5_000
KEYS = [f"tenant-{number}" for number in range(1_000)]

#: Place of the plain side in a round.
PLAIN = 0


def run(options: Options) -> Result:
    """Run the rounds."""
    rounds = []
    with Stage(api="10000/s", tenant="100/s") as stage:
        sides = [
            Side(stage.worker("plain", "plain"), "plain", "free"),
            Side(stage.worker("ours", "one"), "one", "limited"),
            Side(stage.worker("ours", "keys"), "keys", "keyed", KEYS),
            Side(stage.worker("recipe", "recipe"), "recipe", "limited"),
        ]
        ready(side.worker for side in sides)
        # The first tasks of a worker are slow, whatever they are.
        one_round(stage, sides, 1_000)
        for number in range(options.pick(5, 2)):
            options.say(f"overhead: round {number + 1}")
            rounds.append(one_round(stage, sides, TASKS))
        parked = sum(side.worker.count("parks") for side in sides)
    return Result(
        name="overhead",
        theirs="before_start asks the same limit",
        figures=[
            *_figures("a limit of 10,000/s", 0.97, rounds, ours=1, theirs=3),
            *_figures("1,000 keys of a template", 0.88, rounds, ours=2, theirs=None),
            Figure("tasks that had to wait all the same", "", parked),
        ],
    )


def _figures(
    load: str, bar: float, rounds: Sequence[Sequence[Pace]], ours: int, theirs: int | None
) -> list[Figure]:
    def ratios(of: Callable[[Pace], float], side: int | None) -> list[float]:
        return [] if side is None else [of(paces[side]) / of(paces[PLAIN]) for paces in rounds]

    def figure(name: str, of: Callable[[Pace], float], at_least: float | None) -> Figure:
        found, others = ratios(of, ours), ratios(of, theirs)
        return Figure(
            name,
            "of plain",
            median(found),
            median(others) if others else None,
            at_least=at_least,
            rounds=found,
        )

    return [
        figure(f"{load}: throughput", lambda pace: pace.rate, bar),
        figure("  processor time, main process", lambda pace: pace.cost, None),
    ]
