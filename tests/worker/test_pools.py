"""Limits with every pool; prefork has tests of its own."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis

from tests.apps import shop
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

TASKS = 60


@pytest.mark.parametrize(("pool", "concurrency"), [("solo", 1), ("threads", 4), ("gevent", 10)])
def test_a_line_drains_at_its_rate_and_each_task_runs_once(
    redis_url: str, start_worker: StartWorker, pool: str, concurrency: int
) -> None:
    start_worker("tests.apps.shop", redis_url, pool=pool, concurrency=concurrency)
    shop.connect(redis_url)
    for number in range(TASKS):
        shop.drain.delay(number)
    with redis.Redis.from_url(redis_url) as client:

        def rows(name: str) -> list[dict[str, Any]]:
            return [json.loads(row) for row in client.lrange(f"shop:{name}", 0, -1)]

        deadline = time.monotonic() + 30
        while len(rows("runs")) < TASKS:
            assert time.monotonic() < deadline, f"only {len(rows('runs'))} of {TASKS} tasks ran"
            time.sleep(0.05)
        time.sleep(0.3)  # for a second delivery to show
        runs, throttled = rows("runs"), rows("throttled")
    assert sorted(row["number"] for row in runs) == list(range(TASKS))
    assert len({row["id"] for row in throttled}) == len(throttled) > TASKS / 2
    times = sorted(row["at"] for row in runs)
    # 50/s and never over: the last starts 59 intervals of 20 ms after the first, save that a
    # start may come up to 20 ms (on a slow machine more) after its admission.
    assert times[-1] - times[0] > (TASKS - 1) / 50 - 0.2
