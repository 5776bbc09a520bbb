"""What a worker costs whose shards have nothing to do, counted in the commands of their servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle.limits.shards import Shard
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.servers.server import Server, wait_until
from tests.shards import HOME_KEYS
from tests.worker.test_shards import Bench
from tests.workers import StartWorker

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

SHARDS, WORKERS = 16, 64
HOUR_US = 3_600_000_000


@pytest.fixture
def bench(
    redis_url: str, own_server: Server, erp_server: Server, start_worker: StartWorker
) -> Iterator[Bench]:
    servers = {"mail": own_server, "erp": erp_server}
    bench = Bench(redis_url, servers, start_worker, lease=30)
    yield bench
    bench.close()


def count_commands(server: Server, keys: Keys, heartbeats: int) -> tuple[int, float]:
    """Count the scripts that run from one heartbeat to a later one; return the seconds as well."""
    with server.client() as client:

        def last_heartbeat() -> float:
            ends = client.zrange(keys.membership, 0, -1, withscores=True)
            return max((end for name, end in ends if not name.startswith(b"other")), default=0.0)

        def wait_for_next() -> None:
            last = last_heartbeat()
            wait_until(lambda: last_heartbeat() != last, "a heartbeat", 30)

        def count() -> int:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

        wait_until(lambda: last_heartbeat() > 0, "the first heartbeat", 30)
        for _ in range(2):  # the worker knows the others from then on
            wait_for_next()
        before, began = count(), time.monotonic()
        for _ in range(heartbeats):
            wait_for_next()
        return count() - before, time.monotonic() - began


def add_others(server: Server, keys: Keys, queue: str, count: int) -> None:
    """Let other workers live that poll much later."""
    with server.client() as client:
        now = client.time()[0] * 1_000_000
        members = {f"other{number}": now + HOUR_US for number in range(count)}
        client.zadd(keys.membership, members)
        client.zadd(keys.queue(queue).polls, members)


def test_idle_shards_cost_a_server_at_most_100_calls_a_second(bench: Bench) -> None:
    server = bench.servers["erp"]
    entry = {"limits": ["tenant"], "by_key": SHARDS, "url": server.url}
    throttle = bench.throttle()
    queue = throttle.qualify("celery")
    bench.close_throttle(throttle)
    prefixes = [
        shard_prefix(DEFAULT_PREFIX, Shard("tenants", number, SHARDS)) for number in range(SHARDS)
    ]
    for prefix in prefixes:
        add_others(server, Keys(prefix), queue, WORKERS - 1)
    bench.start({"tenants": entry})
    calls, seconds = count_commands(server, Keys(prefixes[0]), heartbeats=2)
    assert calls * WORKERS / seconds <= 100


def test_a_worker_with_one_shard_makes_the_same_calls_as_without_the_setting(bench: Bench) -> None:
    """With another shard elsewhere, it makes one more with each heartbeat."""
    found: list[float] = []
    settings: Any = ({}, bench.erp_shard)
    for shards in settings:
        bench.start(shards)
        calls, seconds = count_commands(bench.servers["mail"], HOME_KEYS, heartbeats=2)
        found.append(calls / seconds)
        bench.worker.terminate()
        bench.worker.wait()
        with bench.servers["mail"].client() as client:
            client.delete(HOME_KEYS.membership)
    assert found[1] <= found[0] + 0.3
