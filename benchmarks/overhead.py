"""What limits that never bind cost: throughput of one worker beside plain Celery's.

No-op tasks on one prefork worker with two processes. Sides: plain Celery; tasks under one limit of
10,000/s (burst 1); tasks under 1,000 keys of one template, 100/s each, given in turn, so that each
is asked for less than twice a second; and what people use today, which asks the 10,000/s limit in
``before_start``. Each round gives each side 5,000 tasks; see ``rounds.py``. A figure is the median
over the rounds of the ratio to plain Celery in the same round.
"""

from __future__ import annotations

from statistics import median

from benchmarks.results import Figure, Options, Result
from benchmarks.rounds import TURN, Side, one_round
from benchmarks.stage import Stage, ready

TASKS = 5_000
KEYS = [f"tenant-{number}" for number in range(1_000)]


def run(options: Options) -> Result:
    """Run the rounds."""
    rounds = options.pick(5, 2)
    with Stage(api="10000/s", tenant="100/s") as stage:
        sides = [
            Side(stage.worker("plain", "plain"), "plain", "free"),
            Side(stage.worker("ours", "one"), "one", "limited"),
            Side(stage.worker("ours", "keys"), "keys", "keyed", KEYS),
            Side(stage.worker("recipe", "recipe"), "recipe", "limited"),
        ]
        ready(side.worker for side in sides)
        one_round(stage, sides, 2 * TURN)  # the first tasks of a worker are slow, whatever they are
        rates = []
        for number in range(rounds):
            options.say(f"overhead: round {number + 1} of {rounds}")
            rates.append(one_round(stage, sides, TASKS))
    one = [ours / plain for plain, ours, _, _ in rates]
    keys = [ours / plain for plain, _, ours, _ in rates]
    recipe = median(theirs / plain for plain, _, _, theirs in rates)
    return Result(
        name="overhead",
        theirs="before_start asks the same limit; first line: plain Celery",
        figures=[
            Figure(
                "no-op tasks a second on one worker (one limit)",
                "1/s",
                median(rate[1] for rate in rates),
                median(rate[0] for rate in rates),
            ),
            Figure(
                "throughput under 10,000/s, of plain Celery's",
                "",
                median(one),
                recipe,
                at_least=0.97,
                rounds=one,
            ),
            Figure(
                "throughput under 1,000 keys, of plain Celery's",
                "",
                median(keys),
                at_least=0.88,
                rounds=keys,
            ),
        ],
    )
