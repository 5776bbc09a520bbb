"""Measures the memory of one key of a limit, by repeating its admissions on a private server.

The figure is ``MEMORY USAGE`` of all keys of one limit and key, at the moment of the run when it is
largest. Most algorithms keep a few numbers; a sliding log keeps each admission of one period, slots
keep each holder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

import click
import redis

from celery_throttle.cli.simulation.figures import fullest
from celery_throttle.cli.simulation.run import SimulatedRun
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.duration import MICROSECONDS
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.acquire import Holder
from celery_throttle.testing import ManualClock
from celery_throttle.testing.server import server_version, start_server

#: The limit and key. Each more character of these names takes one or two bytes.
_REF = LimitRef("limit", "key")

#: Algorithms that keep each admission or holder.
_GROWING = ("sliding-log", CONCURRENCY)

#: Measurements, for other algorithms: the size of a value depends a little on where the server
#: allocates it. The median counts.
_MEASUREMENTS = 15


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """What was measured."""

    bytes: tuple[int | None, ...]  #: of one key of each limit; None if it was not measured
    server: str | None = None  #: name and version of the server; None if none could be started
    missing: str = ""  #: why none could be started


def measure(runs: Sequence[SimulatedRun]) -> MemoryUsage:
    """Measure the runs on a private server, if one can be started."""
    with ExitStack() as ends:
        # The server may still write to the directory while it is killed.
        root = tempfile.TemporaryDirectory(prefix="throttle-", ignore_cleanup_errors=True)
        directory = Path(ends.enter_context(root))
        try:
            url = start_server(directory, ends)
        except click.ClickException as error:
            return MemoryUsage((None,) * len(runs), missing=error.message)
        client: Any = ends.enter_context(redis.Redis.from_url(url))
        sizes = tuple(_bytes(url, client, run) for run in runs)
        return MemoryUsage(sizes, server_version(client))


def _bytes(url: str, client: Any, run: SimulatedRun) -> int:
    client.flushall()
    clock = ManualClock()
    limiter = Limiter(url, {_REF.name: run.limit}, clock=clock)
    try:
        if run.limit.algorithm in _GROWING:
            most = fullest(run, by_count=True)
            for number in range(most.first, most.stop):
                _take(limiter, clock, run, number)
            return _used(limiter, client)
        sizes = []
        for _ in range(_MEASUREMENTS):
            _take(limiter, clock, run, 0)
            sizes.append(_used(limiter, client))
            limiter[_REF].reset()
        return median_low(sizes)
    finally:
        limiter.store.close()


def _used(limiter: Limiter, client: Any) -> int:
    others = limiter.keys.shared_by_keys(_REF.name)
    keys = (key for key in client.scan_iter() if key.decode() not in others)
    return sum(client.memory_usage(key, samples=0) for key in keys)


def _take(limiter: Limiter, clock: ManualClock, run: SimulatedRun, number: int) -> None:
    clock.now, arrival = run.admitted[number]
    requirement = limiter.require([_REF], arrival.cost)
    if run.limit.algorithm == CONCURRENCY:
        # A name as of the holder of a Slot: a process id and a random number.
        holder = Holder(f"{12345} {number:032x}", run.slot_us / MICROSECONDS)
        limiter.run_plan(limiter.plans.try_acquire(requirement, None, mode="slot", holder=holder))
    else:
        limiter.run_plan(limiter.plans.try_acquire(requirement, None))
