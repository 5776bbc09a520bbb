"""A worker checks at its start whether its server may lose tasks."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_throttle.worker.health.preflight import find_problems
from tests.servers.server import Server
from tests.workers import Worker

SAFE = {
    "maxmemory": "0",
    "maxmemory_policy": "allkeys-lru",
    "aof_enabled": "1",
    "role": "master",
    "cluster_enabled": "0",
}


@pytest.mark.parametrize(
    ("facts", "prefix", "said"),
    [
        ({}, "{throttle}", ""),
        ({"maxmemory": "9"}, "{throttle}", "waiting tasks may be evicted"),
        (
            {"maxmemory": "9", "maxmemory_policy": "volatile-ttl"},
            "{throttle}",
            "states of limits in use may be evicted",
        ),
        ({"maxmemory": "9", "maxmemory_policy": "noeviction"}, "{throttle}", ""),
        ({"aof_enabled": "0"}, "{throttle}", "appendonly is no"),
        ({"role": "slave"}, "{throttle}", "it is a replica"),
        ({"cluster_enabled": "1"}, "{throttle}", ""),
        ({"cluster_enabled": "1"}, "app{throttle}", ""),
        ({"cluster_enabled": "1"}, "throttle", "throttle_prefix 'throttle' has no hash tag"),
        ({"cluster_enabled": "1"}, "throttle{}", "has no hash tag"),
        ({"cluster_enabled": "1"}, "}throttle{", "has no hash tag"),
    ],
)
def test_problems_of_a_server(facts: dict[str, str], prefix: str, said: str) -> None:
    found = list(find_problems(SAFE | facts, prefix))
    assert len(found) == bool(said)
    assert said in "".join(found)


def worker(own_server: Server, checks: str) -> Worker:
    env: dict[str, Any] = {"THROTTLE_URL": own_server.url, "SHOP_CHECKS": checks}
    return Worker("tests.apps.shop", own_server.url, env=env)


@pytest.mark.workers
def test_a_worker_warns_and_starts(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
    with worker(own_server, "warn") as warned:
        assert "maxmemory-policy is allkeys-lru" in warned.log()
        assert "appendonly is no" in warned.log()


@pytest.mark.workers
def test_with_checks_as_errors_a_worker_does_not_start(own_server: Server) -> None:
    refused = worker(own_server, "error")
    refused.start()
    try:
        assert refused.wait() != 0
        assert "throttle_checks is 'error', and the server " in refused.log()
        assert "appendonly is no" in refused.log()
    finally:
        refused.close()


@pytest.mark.workers
def test_a_durable_server_passes_all_checks(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("appendonly", "yes")
    with worker(own_server, "error") as started:
        assert "Server redis://" not in started.log()


@pytest.mark.thorough
@pytest.mark.workers
def test_a_lost_server_is_refused_only_if_checks_are_errors(
    own_server: Server, redis_url: str
) -> None:
    own_server.stop()
    env = {"THROTTLE_URL": own_server.url}
    with Worker("tests.apps.shop", redis_url, env=env) as started:
        assert "cannot be reached" in started.log()
    refused = Worker("tests.apps.shop", redis_url, env={**env, "SHOP_CHECKS": "error"})
    refused.start()
    try:
        assert refused.wait() != 0
        assert "throttle_checks is 'error', but the server at" in refused.log()
    finally:
        refused.close()
