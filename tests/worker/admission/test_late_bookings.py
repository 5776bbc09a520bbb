"""A task whose booked start passes while the worker is busy runs soon, whatever its limit."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers


def test_its_unit_is_given_back(redis_url: str, pool: str, start_worker: StartWorker) -> None:
    """The limit gives one an hour, and no line is needed."""
    limit = Limiter(redis_url, {"hourly": "1/h"})["hourly"]
    start_worker("tests.apps.late_starts", redis_url, env={"LATE": "booking"}, pool=pool)
    with Celery(broker=redis_url, set_as_current=False) as sender:
        sender.send_task("tests.apps.late_starts.hourly", [1], queue="late_starts")
    client: Any = redis.Redis.from_url(redis_url)
    with client:
        wait_until(lambda: client.llen("starts"), "its start")
        client.delete("starts")
    totals = limit.status().totals
    assert (totals.granted, totals.refunded, totals.parked) == (2, 1, 0)
    assert limit.peek(0).remaining == 0


@pytest.mark.thorough
@pytest.mark.pools("prefork", "threads")
def test_its_unit_does_not_wait_for_a_process(
    own_server: Server, erp_server: Server, pool: str, start_worker: StartWorker
) -> None:
    """Another task has taken the only one before the server replied."""
    shards = {"erp": {"limits": ["tenant"], "url": erp_server.url}}
    limits = {"mail": "1000/s", "erp": "1000/s", "tenant": "1/h"}
    env = {
        "HOME_URL": own_server.url,
        "SHARDS": json.dumps(shards),
        "LIMITS": json.dumps(limits),
        "TIMEOUT": "10",
    }
    worker = start_worker("tests.apps.sharded", own_server.url, pool=pool, concurrency=1, env=env)
    client: Any = redis.Redis.from_url(own_server.url)
    with client, Celery(broker=own_server.url, set_as_current=False) as sender:

        def postponed() -> int:
            stats: Any = sender.control.inspect([worker.hostname], limit=1).stats() or {}
            shown: int = stats[worker.hostname]["throttle"]["shards"]["erp"]["postponed"]
            return shown

        sender.send_task("tests.apps.sharded.tenant", [1])
        wait_until(lambda: client.llen("sharded:tenant") == 1, "the first calls")
        erp_server.signal(signal.SIGSTOP)
        sender.send_task("tests.apps.sharded.tenant", [2])
        wait_until(lambda: postponed() == 1, "the late call")
        sender.send_task("tests.apps.sharded.plain", [3, 3.0])
        wait_until(lambda: client.llen("sharded:plain") == 1, "the other task")
        erp_server.signal(signal.SIGCONT)
        wait_until(lambda: postponed() == 0, "the end of the late call")
        limit = Limiter(own_server.url, limits, shards=shards)["tenant", 2]
        wait_until(lambda: limit.peek(0).remaining == 1, "its unit, given back")
        assert client.llen("sharded:tenant") == 1
        wait_until(lambda: client.llen("sharded:tenant") == 2, "its start")
