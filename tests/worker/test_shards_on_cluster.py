"""A worker whose shards are on all nodes of a cluster of three masters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import Shard, ShardEntry
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.servers.cluster import Cluster
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

SHARDS = {"tenants": {"limits": ["tenant"], "by_key": 6}}
TENANTS = ShardEntry("tenants", ("tenant",), 6)
KEYS = range(30)


class Bench:
    """A worker, its broker, and the cluster that has the limits."""

    def __init__(self, broker: Server, cluster: Cluster, start_worker: StartWorker) -> None:
        self.cluster = cluster
        self._url = broker.url
        self._start_worker = start_worker
        self._celery = Celery("sharded", broker=broker.url, set_as_current=False)
        self._broker: Any = redis.Redis.from_url(broker.url)

    def start(self, limits: Mapping[str, str]) -> None:
        env = {
            "HOME_URL": self.cluster.url,
            "SHARDS": json.dumps(SHARDS),
            "LIMITS": json.dumps({"mail": "1/h", "erp": "1/h", **limits}),
            "LEASE": "2",
        }
        self._start_worker("tests.apps.sharded", self._url, env=env)

    def send(self, task: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._celery.send_task(f"tests.apps.sharded.{task}", (number,))

    def records(self, task: str) -> list[int]:
        return sorted(map(int, self._broker.lrange(f"sharded:{task}", 0, -1)))

    def states(self) -> list[set[str]]:
        """Return the keys of states on each master."""
        found = []
        for node in self.cluster.nodes:
            with node.client() as client:
                if node is not self.cluster.replica:
                    found.append({key.decode() for key in client.scan_iter("*:state:*")})
        return found

    def close(self) -> None:
        self._broker.close()
        self._celery.close()


@pytest.fixture
def bench(own_server: Server, cluster: Cluster, start_worker: StartWorker) -> Iterator[Bench]:
    bench = Bench(own_server, cluster, start_worker)
    yield bench
    bench.close()


def state_of(key: int) -> str:
    ref = LimitRef("tenant", str(key))
    return Keys(shard_prefix(DEFAULT_PREFIX, TENANTS.shard_of(ref))).state(ref)


def test_each_node_decides_about_its_shards(bench: Bench) -> None:
    bench.start({"tenant": "1/h burst 9", "mail": "1/h burst 1000"})
    bench.send("tenant", KEYS)
    bench.send("mail", KEYS)
    wait_until(lambda: bench.records("mail") == [*KEYS], "all of mail")
    wait_until(lambda: bench.records("tenant") == [*KEYS], "all tasks of tenants")
    on_nodes = bench.states()
    assert all(on_nodes)
    assert set().union(*on_nodes) == {state_of(key) for key in KEYS} | {"{throttle}:state:mail"}
    assert {TENANTS.shard_of(LimitRef("tenant", str(key))) for key in KEYS} == {
        Shard("tenants", number, 6) for number in range(6)
    }


def test_a_failover_of_one_node_loses_no_task_of_any_shard(bench: Bench) -> None:
    bench.start({"tenant": "1/s burst 1", "mail": "10/s burst 1"})
    bench.send("mail", KEYS)
    for _ in range(3):
        bench.send("tenant", KEYS)
    wait_until(lambda: len(bench.records("mail")) >= 5, "the first of mail")
    bench.cluster.fail_over()
    wait_until(lambda: {*bench.records("mail")} == {*KEYS}, "all of mail")
    wait_until(
        lambda: (
            {key: bench.records("tenant").count(key) >= 3 for key in KEYS}
            == dict.fromkeys(KEYS, True)
        ),
        "all tasks of tenants",
    )
    bench.cluster.heal()
