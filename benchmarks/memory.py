"""Memory of waiting tasks, in a worker and in Redis, with 1,000 and 100,000 of them.

One real worker puts the tasks into a line, at a limit of one an hour. Then the resident size of its
main process is read, and how much ``used_memory`` of the broker and of the limits' server together
has grown since the worker was ready. Theirs is the retry recipe (``apps/recipe.py``), whose tasks
wait in the worker's memory with a countdown; a worker needs so long to retry each of them that they
are fewer. The size of a message is what Celery's own message takes in the broker. *Parked a second*
is the number of tasks over the time from sending them until all wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import QUEUE, Stage, wait_until
from celery_throttle.store.keys import Keys

FEW = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of the worker's main process and in Redis, with a number of waiting tasks."""

    waiting: int
    worker: int
    redis: int
    parked: float  #: tasks a second that began to wait


def run(options: Options) -> Result:
    """Fill up step by step, ours first."""
    many, their_many = options.pick(100_000, 10_000), options.pick(10_000, 3_000)
    ours = _sizes("ours", [FEW, many], _parked, options)
    theirs = _sizes("recipe", [FEW, their_many], _retried, options)
    with Stage() as stage:
        [(_, message)] = stage.compose("limited", 1)
    against = f" (the recipe: {their_many:,})"
    return Result(
        name="memory",
        theirs="the retry recipe",
        figures=[
            Figure(
                f"worker with {FEW:,} waiting", "MB", ours[0].worker / 1e6, theirs[0].worker / 1e6
            ),
            Figure(
                f"worker with {many:,} waiting{against}",
                "MB",
                ours[1].worker / 1e6,
                theirs[1].worker / 1e6,
            ),
            Figure("worker, for one more that waits", "bytes", _growth(ours), _growth(theirs)),
            *(
                Figure(
                    f"in Redis, for each of {one.waiting:,} waiting{about}",
                    "bytes",
                    one.redis / one.waiting,
                    other.redis / other.waiting,
                )
                for one, other, about in zip(ours, theirs, ("", against), strict=True)
            ),
            Figure(f"{many:,} parked a second{against}", "1/s", ours[1].parked, theirs[1].parked),
            Figure("size of the message", "bytes", len(message), len(message)),
        ],
    )


def _growth(sizes: Sequence[Size]) -> float:
    few, many = sizes
    return (many.worker - few.worker) / (many.waiting - few.waiting)


def _sizes(
    app: str, steps: Sequence[int], waits: Callable[[Stage, int], bool], options: Options
) -> list[Size]:
    sizes = []
    with Stage(api="1/h", own_store=True) as stage:
        [worker] = stage.workers(app)
        # The one task that the limit admits.
        stage.send("limited", 1)
        worker.wait_for(1)
        before = _used(stage)
        waiting = 0
        for step in steps:
            options.say(f"memory: {step:,} tasks of {app}")
            began, more, waiting = time.monotonic(), step - waiting, step
            stage.send("limited", more)
            wait_until(partial(waits, stage, waiting), f"{waiting} waiting tasks")
            parked = more / (time.monotonic() - began)
            time.sleep(1)
            sizes.append(Size(waiting, worker.memory(), _used(stage) - before, parked))
    return sizes


def _used(stage: Stage) -> int:
    return sum(int(server.info("memory")["used_memory"]) for server in (stage.broker, stage.store))


def _parked(stage: Stage, count: int) -> bool:
    """Whether all wait in the line, and the worker has reported their acknowledgement."""
    return stage.waiting() == count and not stage.store.zcard(Keys().unacknowledged)


def _retried(stage: Stage, count: int) -> bool:
    """Whether all wait in the worker, unacknowledged, for the end of their countdown."""
    return not stage.broker.llen(QUEUE) and bool(stage.broker.hlen("unacked") == count)
