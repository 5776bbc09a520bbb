"""``throttle_enabled = False``: tasks run as in Celery without limits, and no server is asked."""

from __future__ import annotations

import pytest

from tests.apps import disabled
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


def test_tasks_run_without_limits_and_without_a_server(
    redis_url: str, pool: str, start_worker: StartWorker
) -> None:
    disabled.app.conf.update(broker_url=redis_url, result_backend=redis_url)
    worker = start_worker("tests.apps.disabled", redis_url, pool=pool)
    results = disabled.all_of(5).apply_async()
    assert sorted(results.get(timeout=60)) == sorted([*range(5)] * 2)
    fan_out = disabled.throttle.fan_out(map(disabled.call.s, range(-1, 9)), "bulk")
    progress = fan_out.wait(timeout=60)
    assert (progress.sent, progress.done, progress.failed) == (10, 9, 1)
    assert "Limits are disabled (throttle_enabled is False)" in worker.log()
    assert worker.log().count("Limits are disabled") == 1


def test_a_worker_refuses_limits_in_the_memory_of_a_process(
    redis_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker("tests.apps.memory", redis_url, wait=False)
    assert worker.wait(60) != 0
    assert "a worker's limits and lines need a server" in worker.log()
