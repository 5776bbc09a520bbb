"""A worker whose shards are on all nodes of a cluster of three masters."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.shards import Shard, ShardEntry
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from tests.servers.cluster import Cluster
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker, Worker

pytestmark = [pytest.mark.workers, pytest.mark.thorough]

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

    def start(
        self,
        limits: Mapping[str, str],
        shards: Mapping[str, Any] = SHARDS,
        *,
        lease: float = 2.0,
        timeout: float = 1.0,
        **options: Any,
    ) -> Worker:
        env = {
            "HOME_URL": self.cluster.url,
            "SHARDS": json.dumps(shards),
            "LIMITS": json.dumps({"mail": "1/h", "erp": "1/h", **limits}),
            "LEASE": str(lease),
            "TIMEOUT": str(timeout),
        }
        return self._start_worker("tests.apps.sharded", self._url, env=env, **options)

    def send(self, task: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._celery.send_task(f"tests.apps.sharded.{task}", (number,))

    def steps(self, key: int) -> list[str]:
        """Return the steps of the tasks "long" of a key, in order."""
        return [step.decode() for step in self._broker.lrange(f"sharded:long:{key}", 0, -1)]

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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads by /proc")
def test_a_worker_has_the_threads_of_one_shard_and_a_subscription_to_each_node(
    bench: Bench,
) -> None:
    worker = bench.start({"tenant": "1/h"}, shards={})
    with bench.cluster.owner.client() as client:
        wait_until(lambda: client.client_list("pubsub"), "a subscription")
    threads = threads_of(worker)
    worker.terminate()
    worker.wait()
    worker = bench.start({"tenant": "1/h"})
    for node in bench.cluster.masters():
        with node.client() as client:
            wait_until(lambda: len(client.client_list("pubsub")) == 1, "one subscription")
    # A call that is late has a thread for that time.
    wait_until(lambda: threads_of(worker) <= threads, "no more threads")


def threads_of(worker: Worker) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("Threads:"))
    return int(line.split()[1])


def test_a_node_that_stops_costs_no_other_shard_its_leases_and_heartbeats(bench: Bench) -> None:
    """The slots of tasks that run for longer than a lease are renewed by the shared thread.

    By default a lease is thirty timeouts long; here six.
    """
    cluster = bench.cluster
    for node in cluster.nodes:
        node.configure("cluster-require-full-coverage", "no")
    limits = {"tenant": "1 at once"}
    worker = bench.start(limits, pool="threads", concurrency=16, lease=3.0, timeout=0.5)
    lost = next(node for node in cluster.masters() if node is not cluster.owner)
    node_of = {key: cluster.owner_of(cluster.slot_of(state_of(key))) for key in KEYS}
    keys = [key for key in KEYS if node_of[key] is not lost][:8]
    bench.send("long", [*keys, *keys])
    wait_until(lambda: all(bench.steps(key) for key in keys), "a start of each key")
    lost.signal(signal.SIGSTOP)
    clients = {key: node_of[key].client() for key in keys}
    while not all(len(bench.steps(key)) == 4 for key in keys):
        assert all(is_alive(worker, clients[key], membership_of(key)) for key in keys)
        time.sleep(0.1)
    assert {key: bench.steps(key) for key in keys} == dict.fromkeys(keys, ["begin", "end"] * 2)
    for client in clients.values():
        client.close()
    lost.signal(signal.SIGCONT)


def membership_of(key: int) -> str:
    ref = LimitRef("tenant", str(key))
    return Keys(shard_prefix(DEFAULT_PREFIX, TENANTS.shard_of(ref))).membership


def is_alive(worker: Worker, client: Any, membership: str) -> bool:
    """Whether the last heartbeat of a worker still counts."""
    seconds, microseconds = client.time()
    members = client.zrange(membership, 0, -1, withscores=True)
    (ends,) = (end for name, end in members if name.startswith(worker.hostname.encode()))
    return bool(ends > seconds * 1_000_000 + microseconds)
