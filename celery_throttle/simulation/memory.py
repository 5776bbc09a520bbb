"""Memory of one key of a limit, measured: a private server is told what the limit admitted.

It is what ``MEMORY USAGE`` says of all that the server keeps for one limit and key, at the moment
of the run at which most is remembered. Most algorithms keep a few numbers whatever happens; a
sliding log keeps each admission of one period, slots each holder.
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

from celery_throttle.demo.server import start_server
from celery_throttle.limiter import Limiter
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.acquire import Holder
from celery_throttle.simulation import MICROSECONDS
from celery_throttle.simulation.figures import fullest
from celery_throttle.simulation.run import Run
from celery_throttle.testing import ManualClock

#: The limit and key. Longer names take as many bytes more, once or twice.
_REF = LimitRef("limit", "key")

_REMEMBER_EACH = ("sliding-log", CONCURRENCY)

#: Takes of which each is measured, where all need the same: the size of a value depends a little on
#: where the server puts it.
_TAKES = 15


@dataclass(frozen=True, slots=True)
class Memory:
    """What was measured.

    Attributes:
        bytes: of one key of each limit; None where it was not measured.
        server: name and version of the server; None if there was none.
        missing: why there was none.
    """

    bytes: tuple[int | None, ...]
    server: str | None = None
    missing: str = ""


def measure(runs: Sequence[Run]) -> Memory:
    """Measure on a private server; without one, say so."""
    with ExitStack() as ends:
        # A directory that the server still writes to while it is killed.
        root = tempfile.TemporaryDirectory(prefix="throttle-", ignore_cleanup_errors=True)
        directory = Path(ends.enter_context(root))
        try:
            url = start_server(directory, ends)
        except click.ClickException as error:
            return Memory((None,) * len(runs), missing=error.message)
        client: Any = ends.enter_context(redis.Redis.from_url(url))
        about = client.info("server")
        name = about.get("server_name", "redis")
        version = about.get(f"{name}_version", about["redis_version"])
        return Memory(tuple(_bytes(url, client, run) for run in runs), f"{name} {version}")


def _bytes(url: str, client: Any, run: Run) -> int:
    client.flushall()
    clock = ManualClock()
    limiter = Limiter(url, {_REF.name: run.limit}, clock=clock)
    try:
        if run.limit.algorithm in _REMEMBER_EACH:
            most = fullest(run, by_count=True)
            for number in range(most.first, most.stop):
                _take(limiter, clock, run, number)
            return _used(limiter, client)
        sizes = []
        for _ in range(_TAKES):
            _take(limiter, clock, run, 0)
            sizes.append(_used(limiter, client))
            limiter[_REF].reset()
        return median_low(sizes)
    finally:
        limiter.store.close()


def _used(limiter: Limiter, client: Any) -> int:
    keys = (key for key in client.scan_iter() if key.decode() != limiter.keys.limits)
    return sum(client.memory_usage(key, samples=0) for key in keys)


def _take(limiter: Limiter, clock: ManualClock, run: Run, number: int) -> None:
    clock.now, arrival = run.admitted[number]
    need = limiter.require([_REF], arrival.cost)
    if run.limit.algorithm == CONCURRENCY:
        # Named as a held slot names its holder: a process id and a random number.
        holder = Holder(f"{12345} {number:032x}", run.hold / MICROSECONDS)
        limiter.run_plan(limiter.plans.acquire(need, None, mode="slot", holder=holder))
    else:
        limiter.run_plan(limiter.plans.decide(need, None))
