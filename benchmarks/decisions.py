"""Time of a decision and of a claim with one task waiting and with 100,000.

A decision is ``limiter["api"].acquire()``, and is allowed. Between two claims the task is requeued,
so the number of waiting tasks stays the same. Theirs is the counter that people write with
redis-py: ``INCR`` and ``EXPIRE`` of the key of the current second, in one pipeline.

Both lines are on one server, under different prefixes. They are filled by repeating the call by
which a worker parked a task, with other task ids. No worker runs while calls are timed. The sides
alternate in short turns; figures are medians of single calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from benchmarks.admissions import Monitor
from benchmarks.claimant import WORKER, Claimant
from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, ready, wait_until
from celery_throttle import Limiter
from celery_throttle.operations.waiting import requeue_call
from celery_throttle.store.script import script

TURNS, CALLS = 20, 100
NEVER_BINDS = "1000000/s burst 1000000"


def run(options: Options) -> Result:
    """Fill the lines, then time the calls."""
    many = options.pick(100_000, 10_000)
    with Stage(api="1/h") as stage:
        short, long = _Line(stage, "{short}"), _Line(stage, "{long}")
        options.say(f"decisions: {many:,} tasks go into their line")
        _fill(stage, short, 1)
        _fill(stage, long, many)
        for line in (short, long):
            line.limiter["api"].define(NEVER_BINDS)
        timed = {"short": short.decide, "long": long.decide, "counter": _counter(stage)}
        options.say("decisions: timing")
        asked = _time(timed)
        claimed = _time({"short": short.claim, "long": long.claim})
    return Result(
        name="decisions",
        theirs="a counter with redis-py: INCR and EXPIRE in a pipeline",
        figures=[
            Figure("decision, 1 waiting", "us", asked["short"], asked["counter"]),
            Figure(f"decision, {many:,} waiting", "us", asked["long"]),
            Figure(f"decision, {many:,} waiting to 1", "", asked["long"] / asked["short"]),
            Figure("claim, 1 waiting", "us", claimed["short"]),
            Figure(f"claim, {many:,} waiting", "us", claimed["long"]),
            Figure(f"claim, {many:,} waiting to 1", "", claimed["long"] / claimed["short"]),
        ],
    )


class _Line:
    """A line and its limit, under a prefix of their own."""

    def __init__(self, stage: Stage, prefix: str) -> None:
        self.prefix = prefix
        self.limiter = Limiter(stage.store_url, prefix=prefix)
        self._claimant = Claimant(self.limiter)

    def decide(self) -> float:
        """Acquire from the limit; return the seconds of the call."""
        began = time.perf_counter()
        decision = self.limiter["api"].try_acquire()
        seconds = time.perf_counter() - began
        if not decision:
            raise RuntimeError("the limit binds")
        return seconds

    def claim(self) -> float:
        """Claim a task and requeue it; return the seconds of the claim."""
        seconds, _ = self._claimant.claim()
        call = requeue_call(self.limiter.keys, WORKER, "own", 1, [self._claimant.token])
        self.limiter.store.run(call)
        return seconds


def _fill(stage: Stage, line: _Line, count: int) -> None:
    """Let a worker park one task, and repeat its call for the others."""
    worker = stage.worker("ours", prefix=line.prefix)
    ready([worker])
    with Monitor(stage.store_url) as monitor:
        [model] = stage.send("limited", 2)[1:]
        wait_until(lambda: stage.waiting(prefix=line.prefix) == 1, "a task to be parked")
    worker.end()
    park = script("park").sha.encode()
    # The last call: at the first one the server did not have the script.
    call = [one.parts for one in monitor.commands(b"EVALSHA") if one.parts[1] == park][-1]
    messages = stage.compose("limited", count - 1)
    for first in range(0, len(messages), 1000):
        with stage.store.pipeline(transaction=False) as pipe:
            for task_id, _ in messages[first : first + 1000]:
                parts = [part.replace(model.encode(), task_id.encode()) for part in call]
                pipe.execute_command(*parts)
            pipe.execute()
    if stage.waiting(prefix=line.prefix) != count:
        raise RuntimeError(f"{stage.waiting(prefix=line.prefix)} tasks wait, not {count}")


def _counter(stage: Stage) -> Callable[[], float]:
    def count() -> float:
        began = time.perf_counter()
        with stage.store.pipeline() as pipe:
            pipe.incr(f"counter:{int(time.time())}")
            pipe.expire(f"counter:{int(time.time())}", 2)
            pipe.execute()
        return time.perf_counter() - began

    return count


def _time(calls: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median microseconds of each call."""
    took: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            took[name] += [call() for _ in range(CALLS)]
    return {name: median(seconds) * 1e6 for name, seconds in took.items()}
