"""A cluster: one node has all keys, and it need not be the configured one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_throttle import (
    ConfigurationError,
    Limiter,
    StoreError,
    StoreUnavailableError,
    Throttle,
)
from celery_throttle.store.client import Store
from tests.ends import MakeEnd
from tests.servers.cluster import Cluster, Node
from tests.servers.server import valkey_command, wait_until
from tests.store.listening import PING, listening
from tests.store.queue import Queue
from tests.workers import StartWorker

LIMITS = {"api": "1/h burst 100"}


@pytest.fixture
def healed(cluster: Cluster) -> Iterator[Cluster]:
    """The test may damage it."""
    yield cluster
    cluster.heal()


def urls(cluster: Cluster, scheme: str) -> list[str]:
    return [f"{scheme}://127.0.0.1:{node.port}" for node in cluster.nodes]


@pytest.mark.parametrize("scheme", ["redis", "valkey+cluster"])
def test_any_node_leads_to_the_one_that_has_the_keys(
    cluster: Cluster, end_of: MakeEnd, scheme: str
) -> None:
    limiters = [end_of(Limiter(url, LIMITS)) for url in urls(cluster, scheme)]
    for _ in range(2):
        for limiter in limiters:
            assert limiter["api"].try_acquire()
    assert limiters[0]["api"].peek().remaining == 100 - 2 * len(limiters)


def test_calls_of_a_loop_are_redirected_together(cluster: Cluster) -> None:
    async def served(url: str) -> int:
        limiter = Limiter(url, LIMITS)
        calls = (limiter["api"].atry_acquire() for _ in range(30))
        decisions = await asyncio.gather(*calls)
        await limiter.store.aclose()
        return sum(map(bool, decisions))

    assert [asyncio.run(served(url)) for url in urls(cluster, "redis")[:3]] == [30, 30, 30]


def test_a_node_that_was_left_keeps_no_connection(healed: Cluster) -> None:
    """In place of a node that is lost there may be one with another address, again and again."""
    other = next(node for node in healed.masters() if node is not healed.owner)

    def counts() -> list[int]:
        return [len(node.connections()) for node in healed.nodes]

    before = counts()
    limiter = Limiter(f"redis://127.0.0.1:{other.port}", LIMITS)
    assert limiter["api"].try_acquire()
    wait_until(lambda: sum(counts()) == sum(before) + 1, "one connection")
    healed.hand_over()
    assert limiter["api"].try_acquire()
    wait_until(lambda: sum(counts()) == sum(before) + 1, "one connection")
    limiter.store.close()
    wait_until(lambda: counts() == before, "no connection")


@pytest.fixture(params=["ip", "unknown-endpoint", "hostname"])
def telling(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Cluster]:
    with cluster.naming(request.param):
        yield cluster


def test_a_node_says_where_another_one_is(telling: Cluster, end_of: MakeEnd) -> None:
    for url in urls(telling, "redis+cluster"):
        assert end_of(Limiter(url, LIMITS))["api"].try_acquire()


def test_the_next_node_is_asked(cluster: Cluster, end_of: MakeEnd) -> None:
    url = cluster.url.replace("redis+cluster://", "redis+cluster://127.0.0.1:1,")
    limiter = end_of(Limiter(url, LIMITS))
    assert limiter["api"].try_acquire()
    assert limiter["api"].try_acquire()


@pytest.mark.thorough
def test_a_failover_forgets_nothing(healed: Cluster, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(healed.url, LIMITS))
    assert limiter["api"].try_acquire().remaining == 99
    healed.fail_over()
    assert [limiter["api"].try_acquire().remaining for _ in range(3)] == [98, 97, 96]


@pytest.mark.thorough
def test_slots_that_nobody_has(tmp_path: Path, end_of: MakeEnd) -> None:
    node = Node(valkey_command(), tmp_path / "node")
    try:
        limiter = end_of(Limiter(f"redis+cluster://127.0.0.1:{node.port}", LIMITS))
        with pytest.raises(StoreUnavailableError, match="CLUSTERDOWN"):
            limiter["api"].try_acquire()
    finally:
        node.stop()


@pytest.mark.parametrize("prefix", ["throttle", "{}", "}throttle{", "{throttle"])
def test_a_prefix_that_spreads_the_keys_is_an_error_at_once(prefix: str) -> None:
    url = "redis+cluster://user:s3cret@one:6379,two:6379"
    with pytest.raises(ConfigurationError, match=r"hash tag.*'\{throttle\}'") as caught:
        Limiter(url, LIMITS, prefix=prefix)
    assert "s3cret" not in str(caught.value)
    with Celery("shop", set_as_current=False) as app:
        throttle = Throttle(app, LIMITS, url=url, prefix=prefix)
        with pytest.raises(ConfigurationError, match=repr(prefix)):
            throttle.register()


def test_a_prefix_that_spreads_the_keys_of_a_server_that_is_a_node(
    cluster: Cluster, end_of: MakeEnd
) -> None:
    for url in urls(cluster, "redis"):
        limiter = end_of(Limiter(url, LIMITS, prefix="throttle"))
        with pytest.raises(StoreError, match=r"is a cluster: .* hash tag"):
            limiter["api"].try_acquire()
        with pytest.raises(StoreError, match=r"is a cluster: .* hash tag"):
            limiter["api"].define("1/s")
    for node in cluster.nodes:
        assert node.client().dbsize() == 0


@pytest.mark.thorough
def test_a_subscription_follows(healed: Cluster) -> None:
    store = Store(healed.url)
    store.run(PING)
    with listening(store) as listener:
        with healed.client() as client:
            listener.hears(client)
        healed.fail_over()
        store.run(PING)
        with healed.client() as client:
            listener.hears(client)


@pytest.mark.workers
def test_tasks_wait_through_a_failover(
    healed: Cluster, redis_url: str, start_worker: StartWorker
) -> None:
    queue = Queue(redis_url, healed.url, redis_url)
    start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(8)
    healed.fail_over()
    queue.tasks_run()


@pytest.mark.thorough
@pytest.mark.workers
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "partitioned"])
def test_a_line_drains_while_its_master_is_lost(
    healed: Cluster, redis_url: str, start_worker: StartWorker, by: signal.Signals
) -> None:
    """A call to a master that stops is without a reply; one to a dead master fails at once."""
    queue = Queue(redis_url, healed.url, redis_url)
    start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(1_000)
    queue.let_go()
    wait_until(lambda: len(queue.noted("runs")) >= 20, "tasks that run")
    healed.fail_over(by=by)
    assert not queue.all_ran()  # the line was in use
    healed.heal()
    wait_until(lambda: set(queue.noted("runs")) == set(range(1_000)), "all tasks that run")
