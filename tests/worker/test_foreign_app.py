"""An app of somebody else gets limits by its configuration alone: docs/how-to/foreign-apps.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

RULES = """
[limits]
workloads = "2/h burst 2"

[routes]
execute_workload = "workloads"
"""


def test_limits_by_configuration_alone(
    redis_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    rules = tmp_path / "limits.toml"
    rules.write_text(RULES)
    env = {
        "FOREIGN_BROKER": redis_url,
        "FOREIGN_CONFIG_OPTIONS": "tests.apps.foreign.limits.CONFIG_OPTIONS",
        "FOREIGN_RULES": str(rules),
    }
    worker = start_worker("tests.apps.foreign.app", redis_url, env=env)
    assert "Limit in force: workloads 2/h burst 2" in worker.log()
    with Celery(broker=redis_url, set_as_current=False) as app:  # its web server knows no limits
        for number in range(6):
            app.send_task("execute_workload", (number,))
    client: Any = redis.Redis.from_url(redis_url)
    with client:
        wait_until(lambda: client.get("{throttle}:backlog:workloads") == b"4", "four wait")
        wait_until(lambda: client.llen("ran") == 2, "two ran")
