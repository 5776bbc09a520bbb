"""``throttle_replicas``: a message is acknowledged after replicas have its task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_throttle import Limiter, StoreError
from tests.faults.bench import Bench
from tests.servers.server import Server, replicate, valkey_command


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    (tmp_path / "master").mkdir()
    (tmp_path / "replica").mkdir()
    master = Server(valkey_command(), tmp_path / "master")
    replica = Server(
        valkey_command(), tmp_path / "replica", "--replicaof", "127.0.0.1", str(master.port)
    )
    replicate(master, replica)
    yield master, replica
    replica.stop()
    master.stop()


@pytest.mark.thorough
def test_what_replicas_have(servers: tuple[Server, Server]) -> None:
    master, replica = servers
    patient = Limiter(master.url, {"api": "1/h"}, timeout=60)
    patient.register()
    patient.store.confirm(1)
    patient.store.close()
    limiter = Limiter(master.url)
    with pytest.raises(StoreError, match="only 1 of 2 replicas"):
        limiter.store.confirm(2)
    replica.stop()
    limiter["api"].try_acquire()
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):
        limiter.store.confirm(1)
    assert limiter["api"].peek().retry_after


@pytest.mark.thorough
@pytest.mark.workers
def test_tasks_stay_at_the_broker_until_replicas_have_them(
    redis_url: str, servers: tuple[Server, Server]
) -> None:
    master, replica = servers
    conf = {"throttle_replicas": 1, "throttle_timeout": 4}
    limiter = Limiter(master.url, {"api": "100/s"})
    with (
        Bench(redis_url, master.url, conf=conf) as bench,
        redis.Redis.from_url(redis_url) as broker,
    ):
        bench.start_workers(1)
        limiter["api"].pause(3600)
        os.kill(replica.pid, signal.SIGSTOP)
        bench.send("early", range(5))
        bench.until(lambda: "held back" in bench.workers[0].log(), "the worker says so")
        bench.until(lambda: waiting(master) == 5, "all have joined their line")
        assert broker.hlen("unacked") == 5
        os.kill(replica.pid, signal.SIGCONT)
        bench.until(lambda: broker.hlen("unacked") == 0, "all are acknowledged")
        assert waiting(replica) == 5
        limiter["api"].reset()
        bench.until_started("early", 5)
        assert len(bench.starts("early")) == 5


def waiting(server: Server) -> int:
    with redis.Redis.from_url(server.url) as client:
        return sum(client.hlen(key) for key in client.keys("*:messages:*"))


def test_replicas_have_half_the_timeout_of_the_url(redis_url: str) -> None:
    limiter = Limiter(f"{redis_url}?socket_timeout=0.2", timeout=5)
    with pytest.raises(StoreError, match="only 0 of 1 replicas"):
        limiter.store.confirm(1)
    assert not limiter.store.breaker.is_open
    limiter.store.close()
