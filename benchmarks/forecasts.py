"""Errors of forecasts: of a fan-out that takes a minute, after a pause, and after a change.

Two prefork workers with two processes each; all tasks are sent at once under ``50/s``. Four times:
nothing happens; the limit is paused for 5 s; the fan-out is; the limit is changed to ``80/s``. The
error is that of the seconds in ``FanOut.forecast()``, relative to the seconds until the last start
(the first line of the body of a task). The first forecast is made when all tasks were sent.

*100,000 lines* are tenants under one limit, each with a limit of its own: the time of the
computation, without reading from the server.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from celery import Celery

from benchmarks.results import Figure, Options, Result
from benchmarks.stage import Stage, Worker, ready, wait_until
from celery_throttle import Throttle
from celery_throttle.bulk.fan_out import FanOut
from celery_throttle.observe.forecasts.fluid import Capacity, FluidLine, drain_times

RATE = 50


@dataclass(frozen=True, slots=True)
class TimedForecast:
    """When a forecast was made (seconds since the epoch), and its seconds."""

    made_at: float
    seconds: float

    def error(self, ended: float) -> float:
        """Return the error in percent of the actual seconds."""
        actual = ended - self.made_at
        return abs(self.seconds - actual) / actual * 100


def run(options: Options) -> Result:
    """Measure all scenes, then the computation."""
    seconds = options.pick(60, 15)
    after = seconds / 6
    figures = []
    with Stage(api=f"{RATE}/s") as stage:
        workers = [stage.worker("ours") for _ in range(2)]
        ready(workers)
        app = Celery(broker=stage.broker_url, set_as_current=False)
        throttle = Throttle(app, url=stage.store_url)
        scenes: list[tuple[str, Callable[[FanOut], object]]] = [
            ("as it is", lambda _: None),
            ("a pause of 5 s", lambda _: throttle["api"].pause(5)),
            ("a pause of the fan-out, of 5 s", lambda fan_out: fan_out.pause(5)),
            ("a change to 80/s", lambda _: throttle["api"].define("80/s")),
        ]
        for name, change in scenes:
            options.say(f"forecasts: {seconds} s, {name}")
            stage.publish(RATE * seconds, name)
            fan_out = throttle.fan_out_named(name)
            start, later = _scene(fan_out, workers, after=after, change=partial(change, fan_out))
            if name == "as it is":
                figures.append(_figure(f"fan-out of {seconds} s: at the start", start))
            figures.append(_figure(f"  after {after:g} s: {name}", later))
        throttle.store.close()
    figures += [_computed(100_000, keyed=False), _computed(100_000, keyed=True)]
    return Result(name="forecasts", theirs="", figures=figures)


def _figure(name: str, error: float) -> Figure:
    return Figure(name, "%", error, at_most=5)


def _scene(
    fan_out: FanOut, workers: Sequence[Worker], *, after: float, change: Callable[[], object]
) -> tuple[float, float]:
    """Return the errors of the forecasts at the start, and after some seconds and a change."""
    start = _forecast(fan_out)
    time.sleep(after)
    change()
    later = _forecast(fan_out)
    wait_until(lambda: fan_out.progress().complete, "all tasks to end")
    ended = max(mark.time for worker in workers for mark in worker.marks())
    return start.error(ended), later.error(ended)


def _forecast(fan_out: FanOut) -> TimedForecast:
    made_at, forecast = time.time(), fan_out.forecast()
    assert forecast.seconds is not None  # noqa: S101  # no slots here
    return TimedForecast(made_at, forecast.seconds)


def _computed(count: int, *, keyed: bool) -> Figure:
    chance = random.Random(1)
    api, lines = Capacity("api", 1000.0), []
    for _ in range(count):
        tenant = Capacity("tenant", 10.0, chance.random())
        costs = ((api, 1.0), (tenant, 1.0)) if keyed else ((api, 1.0),)
        lines.append(FluidLine(chance.randrange(1, 5000), costs))
    began = time.perf_counter()
    drain_times(lines)
    name = f"{count:,} lines at one limit{', each with one of its own' if keyed else ''}"
    return Figure(name, "s", time.perf_counter() - began)
