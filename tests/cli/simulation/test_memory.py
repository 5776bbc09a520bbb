"""The measured memory equals that after admitting a whole trace."""

from __future__ import annotations

from typing import Any

import click
import pytest
import redis

from celery_throttle.cli.simulation import memory
from celery_throttle.cli.simulation.run import SimulatedRun, run_trace
from celery_throttle.cli.simulation.traces import Arrival, Trace
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.grammar import ALGORITHMS
from celery_throttle.limits.limit import Limit
from celery_throttle.testing import ManualClock

SECOND = 1_000_000
TRACE = Trace.of("test", [Arrival(number * SECOND // 10) for number in range(1200)])

LIMITS = [
    "5/s",
    "5/s burst 20",
    *(f"5/s burst 20 using {name}" for name in ALGORITHMS if "burst" in ALGORITHMS[name]),
    "300/m using fixed-window",
    "300/m using fixed-window from first-request",
    "300/d using fixed-window in America/Los_Angeles",
    "300/m using sliding-log",
    "40/m using sliding-log",
    "300/m using sliding-window",
    "300/m using sliding-window parts 60 oldest dropped",
]


def used(client: Any) -> int:
    of_key = ("state", "entries", "key-cap")
    return sum(
        client.memory_usage(key, samples=0)
        for key in client.scan_iter()
        if key.decode().split(":")[1].startswith(of_key)
    )


@pytest.fixture
def runs() -> list[SimulatedRun]:
    return [run_trace(TRACE, Limit.parse(text)) for text in LIMITS]


def test_it_is_the_most_that_a_whole_trace_takes(redis_url: str, runs: list[SimulatedRun]) -> None:
    measured = memory.measure(runs)
    assert measured.server
    most = []
    assert len(set(measured.bytes[: LIMITS.index("300/m using fixed-window")])) == 1
    with redis.Redis.from_url(redis_url) as client:
        for run in runs:
            client.flushall()
            clock = ManualClock()
            limiter = Limiter(redis_url, {"limit": run.limit}, clock=clock)
            sizes = []
            for start, arrival in run.admitted:
                clock.now = start
                assert limiter["limit", "key"].try_acquire(arrival.cost)
                sizes.append(used(client))
            limiter.store.close()
            most.append(max(sizes))
    # Allocation and the layout of sorted sets vary.
    for text, size, largest in zip(LIMITS, measured.bytes, most, strict=True):
        assert size is not None
        assert largest - 16 <= size * 1.15, (text, size, largest)
        assert size <= largest * 1.15, (text, size, largest)


def test_slots_take_memory_for_each_holder() -> None:
    runs = [
        run_trace(TRACE, Limit.parse(f"{slots} at once"), slot_us=60 * SECOND)
        for slots in (1, 10, 40)
    ]
    one, ten, forty = (size or 0 for size in memory.measure(runs).bytes)
    assert 40 <= (forty - ten) / 30 <= 120
    assert one < ten


def test_without_a_server_it_says_so(
    monkeypatch: pytest.MonkeyPatch, runs: list[SimulatedRun]
) -> None:
    def fail(*_: object) -> str:
        raise click.ClickException("no server here")

    monkeypatch.setattr(memory, "start_server", fail)
    measured = memory.measure(runs)
    assert set(measured.bytes) == {None}
    assert measured.missing == "no server here"
