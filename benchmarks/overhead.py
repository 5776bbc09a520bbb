"""The cost of limits that never bind: throughput of one worker beside plain Celery's.

No-op tasks on one prefork worker with two processes. Sides: plain Celery; tasks under one limit of
10,000/s (burst 1); tasks under 1,000 keys of one template, 100/s each, given in turn, so that each
is asked for about once a second; the same keys and costs by functions; what people use today, which
asks the 10,000/s limit in ``before_start``; and plain Celery once more. Ratios are to the mean of
both plain workers; that of the second to the first shows what the noise of the machine makes of 1.
The ratio of functions is to the template.

Each round starts its workers anew, since two workers that do the same differ by some percent for
as long as they live. Their main processes share one processor, everything else has the others. A
round gives each side 5,000 tasks and compares them turn by turn, see ``rounds.py``; a figure is the
median over the rounds. Beside the throughput, on which all processes
of the machine have a say, stands the processor time of the worker's main process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.rounds import Pace, Side, both, one_round
from benchmarks.stage import Stage, ready

TASKS = 5_000
KEYS = [f"tenant-{number}" for number in range(1_000)]

#: Indexes of the sides in a round.
PLAIN, ONE, MANY, COMPUTED, RECIPE, AGAIN = range(6)


def run(options: Options) -> Result:
    """Run the rounds."""
    rounds, parked = [], 0
    for number in range(options.pick(7, 2)):
        options.say(f"overhead: round {number + 1}")
        with Stage(api="10000/s", tenant="100/s") as stage:
            sides = [
                Side(stage.worker("plain", "plain"), "plain", "free"),
                Side(stage.worker("ours", "one"), "one", "limited"),
                Side(stage.worker("ours", "many"), "many", "keyed", KEYS),
                Side(stage.worker("ours", "computed"), "computed", "computed", KEYS),
                Side(stage.worker("recipe", "recipe"), "recipe", "limited"),
                Side(stage.worker("plain", "again"), "again", "free"),
            ]
            ready(side.worker for side in sides)
            stage.pin(side.worker for side in sides)
            # The first tasks of a worker are slow, whatever they are.
            one_round(stage, sides, 1_000)
            rounds.append(one_round(stage, sides, TASKS))
            parked += sum(side.worker.count("parks") for side in sides)
    return Result(
        name="overhead",
        theirs="before_start asks the same limit",
        figures=[
            *_figures("a limit of 10,000/s", rounds, ONE, RECIPE, bar=0.98),
            *_figures("1,000 keys of a template", rounds, MANY, bar=0.93),
            *_figures(
                "the same keys by functions",
                rounds,
                COMPUTED,
                base=itemgetter(MANY),
                unit="of the template",
                bar=0.95,
            ),
            *_figures("plain Celery, again", rounds, AGAIN, base=itemgetter(PLAIN)),
            Figure("tasks that had to wait all the same", "", parked),
        ],
    )


def _plain(paces: Sequence[Pace]) -> Pace:
    return both(paces[PLAIN], paces[AGAIN])


def _figures(
    load: str,
    rounds: Sequence[Sequence[Pace]],
    ours: int,
    theirs: int | None = None,
    *,
    base: Callable[[Sequence[Pace]], Pace] = _plain,
    unit: str = "of plain",
    bar: float | None = None,
) -> list[Figure]:
    def figure(name: str, compare: Callable[[Pace, Pace], float], at_least: float | None) -> Figure:
        found = [compare(paces[ours], base(paces)) for paces in rounds]
        others = [compare(paces[theirs], base(paces)) for paces in rounds] if theirs else []
        beside = median(others) if others else None
        return Figure(name, unit, median(found), beside, at_least=at_least, rounds=found)

    return [
        figure(f"{load}: throughput", Pace.beside, bar),
        figure("  processor time, main process", lambda one, other: one.cost / other.cost, None),
    ]
