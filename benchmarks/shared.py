"""Tasks share two limits, one of them saturated: how much of the other quota others can use.

Two fan-outs wait, on two prefork workers with two processes each. The tasks of the first need 100/s
and also 10/s, so at most ten of them start in a second. Those of the second need only the 100/s: 90
a second are left to them. The figure is how many of these they use, after the first two seconds.
"""

from __future__ import annotations

import time

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, ready

#: Seconds before the measurement.
WARM_UP_SECONDS = 2.0

ALL, FEW = 100, 10


def run(options: Options) -> Result:
    """Let both wait, and count."""
    seconds = options.pick(30, 8)
    with Stage(api=f"{ALL}/s", tenant=f"{FEW}/s") as stage:
        workers = [stage.worker("ours") for _ in range(2)]
        ready(workers)
        options.say(f"shared: {seconds} s")
        stage.publish(FEW * (seconds + 10), "both", task="both")
        report = stage.publish(ALL * (seconds + 10), "alone")
        begin = report["began"] + report["seconds"] + WARM_UP_SECONDS
        time.sleep(max(0.0, begin + seconds - time.time()))
        both = set(stage.ended("both"))
        starts = [
            mark
            for worker in workers
            for mark in worker.marks()
            if begin <= mark.time < begin + seconds
        ]
    alone = sum(mark.task_id not in both for mark in starts)
    return Result(
        name="shared",
        theirs="",
        figures=[
            Figure(
                f"tasks that need {ALL}/s only, of the {ALL - FEW}/s left to them",
                "",
                alone / (ALL - FEW) / seconds,
                at_least=0.99,
            ),
            Figure(
                f"tasks that need {FEW}/s as well, of their {FEW}/s",
                "",
                (len(starts) - alone) / FEW / seconds,
            ),
        ],
    )
