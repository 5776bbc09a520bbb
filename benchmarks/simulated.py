"""Simulated fleets of workers: what they have in common, and how their starts are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random

from benchmarks.marks import Mark
from benchmarks.quota import fullest, used
from benchmarks.results import Figure
from celery_throttle.limits.limit import Limit
from celery_throttle.worker import tuning
from tests.operations.virtual_workers import Workers
from tests.protocol import SECOND, Protocol


def make_fleet(
    lines: Protocol | Sequence[Protocol],
    workers: int,
    *,
    processes: int = 2,
    poll_interval: float = tuning.MAX_POLL_INTERVAL_SECONDS,
    apart: bool = False,
) -> Workers:
    """Return simulated workers, whose polls are up to 2 ms late; each shard may have its own."""
    late = Random(1)
    return Workers(
        *(lines, workers),
        processes=processes,
        lateness=lambda: late.randint(0, 2_000),
        poll_interval=poll_interval,
        apart=apart,
    )


def run_with_stops(fleet: Workers, seconds: float) -> None:
    """Run: half of the workers stop after a third of the time, and are back after two thirds."""
    for part in range(3):
        for worker in fleet.all[::2]:
            worker.is_stopped = part == 1
            if part == 2:
                fleet.wake(worker)
        fleet.run(seconds / 3)


def count_starts(fleet: Workers) -> int:
    """Return how many tasks have started."""
    return sum(len(times) for times in fleet.starts.values())


def starts_since(fleet: Workers, since: int) -> list[list[float]]:
    """Return the times of the starts of each limit or key in seconds, from a time (us) on."""
    return [[at / SECOND for at in sorted(some) if at >= since] for some in fleet.starts.values()]


def quality(limit: str, by_key: Sequence[Sequence[float]]) -> Iterator[Figure]:
    """Yield the figures of starts of a limit, or of keys of it."""
    parsed = Limit.parse(limit)
    p, q = parsed.ticks
    spacing, bound = p / q / SECOND, parsed.burst + SECOND * q // p + 1
    marks = [[Mark(at, "") for at in times] for times in by_key]
    most = max(fullest(times) for times in by_key)
    delay = max(after - before for times in by_key for before, after in pairwise(times)) - spacing
    yield Figure("  quota used", "", min(used(some, parsed) for some in marks), at_least=0.99)
    yield Figure("  fullest second", "", most, at_most=bound)
    yield Figure("  longest delay of a start", "ms", 1_000 * delay)
