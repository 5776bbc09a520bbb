"""The page and the work of a scrape do not grow with keys."""

from __future__ import annotations

import pytest

from celery_throttle.operations.waiting import LineTasks, ParkRequest, park_call
from tests.observe.metrics.page import read_page
from tests.protocol import Protocol

QUEUE = "redis/0/celery"


def park(lines: Protocol, names: list[str], keys: range) -> None:
    """Let a task of each key wait."""
    for name in names:
        calls = [
            park_call(lines.keys, [LineTasks(QUEUE, [_task(lines, name, key)])], now=lines.now)
            for key in keys
        ]
        lines.store.run_all(calls)


def _task(lines: Protocol, name: str, key: int) -> ParkRequest:
    requirement = lines.limiter.require([lines.limiter[name, key]], 1)
    return ParkRequest(f"{name} {key}", b"message", requirement)


def commands_of_a_scrape(lines: Protocol) -> int:
    """Return how many commands the server runs for a page, those of scripts included."""
    lines.client.config_resetstat()
    read_page(lines.limiter)
    return sum(row["calls"] for row in lines.client.info("commandstats").values())


@pytest.mark.thorough
def test_many_keys(redis_url: str) -> None:
    names = [f"limit-{number}" for number in range(100)]
    lines = Protocol(redis_url, dict.fromkeys(names, "1/h"))
    park(lines, names, range(100))
    few, samples = commands_of_a_scrape(lines), len(read_page(lines.limiter))
    park(lines, names, range(100, 500))
    assert commands_of_a_scrape(lines) <= 1.1 * few
    page = read_page(lines.limiter)
    assert len(page) == samples
    assert sum(page.of("tasks_waiting").values()) == 50_000
    lines.close()
