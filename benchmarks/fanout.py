"""A fan-out of 1,000,000 tasks of 300 bytes into one line, while a worker takes from it.

One process sends them (``apps/publisher.py``); one prefork worker with two processes starts ten a
second, as its limit allows. The rate is that of the whole call, including making the signatures.
The memory of the publisher is its largest growth after the first thousand tasks; that of the
worker, the growth of its main process while the tasks were sent. The memory of a task in Redis is
compared with the bytes of its packed message.

Theirs is ``delay()`` in a loop, with fewer tasks, which sends them to the broker's queue.

Fan-outs are also sent by processes with the Celery integrations of OpenTelemetry, Sentry, or both,
in a trace. Their speed is compared with that of a process without, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchmarks.apps.tracers import OPENTELEMETRY, SENTRY
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import LINES, Stage, wait_until
from celery_throttle.store.keys import Keys

#: Packed messages whose size is read.
SAMPLE_SIZE = 1_000

#: Fan-outs of each kind that are compared, and their tracers.
TRACED_ROUNDS = 7
TRACERS = {
    "OpenTelemetry": (OPENTELEMETRY,),
    "Sentry": (SENTRY,),
    "both": (OPENTELEMETRY, SENTRY),
}


def run(options: Options) -> Result:
    """Send the tasks, then measure."""
    count, theirs = options.pick(1_000_000, 50_000), options.pick(20_000, 2_000)
    with Stage(api="10/s") as stage:
        [worker] = stage.workers("ours")
        stage.send("limited", 1)
        worker.wait_for(1)
        worker_before, redis_before = worker.memory(), _used(stage)
        options.say(f"fanout: {count:,} tasks are sent")
        report = stage.publish(count)
        wait_until(lambda: worker.count() > 1, "the first task to start")
        first = worker.marks(skip=1)[0].time - report["began"]
        time.sleep(1)  # for a claim of the worker
        waiting = stage.waiting()
        redis, packed = (_used(stage) - redis_before) / waiting, _packed(stage)
        grown = worker.memory() - worker_before
    options.say(f"fanout: {theirs:,} tasks are sent by delay()")
    with Stage(api="10/s") as stage:
        loop = stage.publish(theirs, name=None)
    return Result(
        name="fanout",
        theirs="delay() in a loop",
        figures=[
            Figure(
                f"{count:,} tasks, sent",
                "/s",
                count / report["seconds"],
                theirs / loop["seconds"],
                at_least=15_000,
            ),
            Figure("publisher, growth", "MB", report["grown"] / 1e6, at_most=20),
            Figure("worker, growth", "MB", grown / 1e6, at_most=20),
            Figure("first task starts", "s", first, at_most=1),
            Figure("packed message", "bytes", packed),
            Figure("in Redis, of the packed message", "", redis / packed, at_most=1.5),
            *_traced(options),
        ],
    )


def _traced(options: Options) -> list[Figure]:
    """Compare the speed of fan-outs with and without tracers.

    The fastest of several counts: other load of the machine slows it least.
    """
    count = options.pick(60_000, 20_000)
    options.say(f"fanout: {count:,} tasks are sent with and without tracers, {TRACED_ROUNDS} times")
    kinds: dict[str, Sequence[str]] = {"": (), **TRACERS}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(TRACED_ROUNDS):
        for name in reversed(kinds) if number % 2 else kinds:
            seconds[name].append(_seconds(count, kinds[name]))
    fastest = {name: min(found) for name, found in seconds.items()}
    return [
        Figure(f"speed with {name}", "x untraced", fastest[""] / fastest[name], at_least=0.8)
        for name in TRACERS
    ]


def _seconds(count: int, tracers: Sequence[str]) -> float:
    with Stage(api="10/s") as stage:
        return stage.publish(count, tracers=tracers)["seconds"]


def _used(stage: Stage) -> int:
    return int(stage.store.info("memory")["used_memory"])


def _packed(stage: Stage) -> float:
    """Return the mean bytes of some packed messages, with the fields stored beside them."""
    messages = Keys().queue(LINES).messages
    found: Any = stage.store.hscan(messages, count=SAMPLE_SIZE)[1]
    return mean(len(packed) for packed in found.values())
