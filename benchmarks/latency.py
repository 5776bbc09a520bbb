"""Latency of a plain task while 20,000 throttled ones wait, beside that with none at all.

Two prefork workers with two processes each, on queues of their own. Ours consumes a queue of which
20,000 tasks wait for a limit of 20/s, and go on being released. The other is plain Celery, and its
queue holds nothing else. Phases alternate: 50 plain tasks are sent to one of the queues, 10 to 30
ms apart, while all processes of the other worker are stopped where they are, so each phase has the
machine to itself. A latency runs from just before the message is put into the broker to the first
line of the task's body.
"""

from __future__ import annotations

import time
from statistics import median

from benchmarks.probes import measure_latencies
from benchmarks.results import Figure, Options, Result, percentile
from benchmarks.stage import Stage, wait_until

#: Seconds between two probes, at least and at most.
PAUSE = (0.010, 0.030)


def run(options: Options) -> Result:
    """Fill the line, then run the phases."""
    waiting, phases = options.pick(20_000, 5_000), options.pick(20, 6)
    busy: list[float] = []
    quiet: list[float] = []
    with Stage(api="20/s") as stage:
        [ours] = stage.workers("ours", queue="busy")
        [plain] = stage.workers("plain", queue="quiet")
        options.say(f"latency: {waiting} tasks go into their line")
        stage.send("limited", waiting, "busy")
        wait_until(lambda: stage.broker.llen("busy") == 0, "the queue to be empty")
        options.say(f"latency: {phases} phases of each")
        sides = [(ours, plain, "busy", busy), (plain, ours, "quiet", quiet)]
        for number in range(phases):
            for worker, other, queue, latencies in sides if number % 2 else reversed(sides):
                other.freeze()
                # What it missed while it was stopped, and its first task, are not the question.
                time.sleep(0.3)
                latencies.extend(measure_latencies(stage, [worker], PAUSE, queue))
                other.thaw()
        left = stage.waiting("busy")
    figures = [
        Figure("median", "ms", median(busy) * 1e3, median(quiet) * 1e3),
        Figure("p99", "ms", percentile(busy, 0.99) * 1e3, percentile(quiet, 0.99) * 1e3),
        Figure("median, ratio", "", median(busy) / median(quiet), at_most=1.2),
        Figure(
            "p99, ratio",
            "",
            percentile(busy, 0.99) / percentile(quiet, 0.99),
            at_most=1.2,
        ),
        Figure("tasks still waiting at the end", "", left),
    ]
    return Result("latency", "plain Celery, nothing else in the queue", figures)
