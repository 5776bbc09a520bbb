"""How true forecasts are: of a fan-out that takes a minute, after a pause, and after a change.

Two prefork workers with two processes each; all tasks are sent at once under ``50/s``. Three times:
nothing happens; the limit is paused for 5 s; the limit is changed to ``80/s``. The error is that of
the seconds that a forecast tells, in parts of those that were left until the last start (the first
line of the task's body). The first forecast is made when no task is left at the broker.

*100,000 lines* are tenants under one limit, each with a limit of its own: the time of what is
computed, without what is read from the server.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import QUEUE, Stage, Worker, ready, wait_until
from celery_throttle import Limiter
from celery_throttle.alike import empty_times
from celery_throttle.fluid import Line
from celery_throttle.supplies import Supply

RATE = 50


@dataclass(frozen=True, slots=True)
class Told:
    """A forecast: when it was asked for, by the time of day, and the seconds that it told."""

    asked: float
    seconds: float

    def error(self, ended: float) -> float:
        """In percent of the time that was left."""
        left = ended - self.asked
        return abs(self.seconds - left) / left * 100


def run(options: Options) -> Result:
    """Measure all."""
    seconds = options.pick(60, 15)
    after = seconds / 6
    figures = []
    with Stage(api=f"{RATE}/s") as stage:
        workers = [stage.worker("ours") for _ in range(2)]
        ready(workers)
        limiter = Limiter(stage.store_url)
        scenes: list[tuple[str, Callable[[], object]]] = [
            ("as it is", lambda: None),
            ("a pause of 5 s", partial(limiter["api"].pause, 5)),
            ("a change to 80/s", partial(limiter.define, "api", "80/s")),
        ]
        for name, change in scenes:
            options.say(f"forecasts: {seconds} s, {name}")
            start, later = _scene(
                stage, workers, limiter, RATE * seconds, after=after, change=change
            )
            if name == "as it is":
                figures.append(_figure(f"fan-out of {seconds} s: at the start", start))
            figures.append(_figure(f"  after {after:g} s: {name}", later))
        limiter.store.close()
    figures += [_computed(100_000, keyed=False), _computed(100_000, keyed=True)]
    return Result(name="forecasts", theirs="none", figures=figures)


def _figure(name: str, error: float) -> Figure:
    return Figure(name, "%", error, at_most=5)


def _scene(
    stage: Stage,
    workers: Sequence[Worker],
    limiter: Limiter,
    tasks: int,
    *,
    after: float,
    change: Callable[[], object],
) -> tuple[float, float]:
    """The errors of the forecasts at the start and after some seconds and a change."""
    started = sum(worker.count() for worker in workers)
    stage.send("limited", tasks)
    wait_until(lambda: not stage.broker.llen(QUEUE) and stage.waiting() > tasks / 2, "lines")
    time.sleep(0.5)  # what workers hold already joins them
    start = _ask(limiter)
    time.sleep(after)
    change()
    later = _ask(limiter)
    total = started + tasks
    wait_until(lambda: sum(worker.count() for worker in workers) >= total, f"{tasks} starts")
    ended = max(mark.time for worker in workers for mark in worker.marks())
    return start.error(ended), later.error(ended)


def _ask(limiter: Limiter) -> Told:
    asked, told = time.time(), limiter.forecast("api")
    assert told.seconds is not None  # noqa: S101  # no slots here
    return Told(asked, told.seconds)


def _computed(count: int, *, keyed: bool) -> Figure:
    chance = random.Random(1)
    supplies, lines = [Supply("api", 1000.0)], []
    for number in range(count):
        costs = ((0, 1.0), (number + 1, 1.0)) if keyed else ((0, 1.0),)
        supplies.append(Supply("tenant", 10.0, chance.random()))
        lines.append(Line(chance.randrange(1, 5000), costs))
    began = time.perf_counter()
    empty_times(lines, supplies)
    name = f"{count:,} lines at one limit{', each with one of its own' if keyed else ''}"
    return Figure(name, "s", time.perf_counter() - began)
