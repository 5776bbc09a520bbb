"""An idle worker is woken up, also after its server was lost."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from celery_throttle.errors import StoreError, StoreUnavailableError
from celery_throttle.limits.shards import Shard, ShardEntry
from celery_throttle.store.client import Store
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys, shard_prefix
from celery_throttle.store.script import Call, script
from celery_throttle.worker.claims.wakeup import Channel, WakeupListener
from tests.servers.cluster import Cluster
from tests.servers.server import Server, wait_until

CHANNEL = Keys().wakeup_channel("tests")


class Listener(WakeupListener):
    """A listener that counts its wake-ups."""

    def __init__(self, store: Store) -> None:
        super().__init__([Channel(store, CHANNEL, self._count)])
        self.store = store
        self.wakeups = 0
        self.woken = threading.Event()

    def _count(self) -> None:
        self.wakeups += 1
        self.woken.set()

    def expect(self, what: str) -> None:
        assert self.woken.wait(30), what
        self.woken.clear()


@contextmanager
def listening(url: str) -> Iterator[Listener]:
    listener = Listener(Store(url))
    listener.start()
    yield listener
    listener.close()
    assert listener._thread
    listener._thread.join(30)
    assert not listener._thread.is_alive()


@pytest.fixture
def listener(own_server: Server) -> Iterator[Listener]:
    with listening(own_server.url) as listener:
        yield listener


def probe(store: Store, keys: Keys) -> None:
    store.probe(Call(script("read_definitions"), [keys.limits], [""]))


def publish(server: Server) -> None:
    with server.client() as client:
        wait_until(lambda: client.publish(CHANNEL, ""), "a subscription")


def test_each_message_and_each_subscription_wakes(own_server: Server, listener: Listener) -> None:
    """Messages before the subscription were lost."""
    listener.expect("the subscription")
    publish(own_server)
    listener.expect("a message")
    listener.start()  # another connection to the broker
    assert listener.wakeups == 2


@pytest.mark.thorough
@pytest.mark.parametrize("reset", [False, True])
def test_it_subscribes_again_after_the_server_was_lost(
    own_server: Server, listener: Listener, *, reset: bool
) -> None:
    listener.expect("the subscription")
    if reset:  # a server that dies with unread data resets the connection
        own_server.signal(signal.SIGSTOP)
    own_server.stop()
    own_server.start()
    # A subscription that was refused meanwhile opens the breaker; the worker looks for its end.
    wait_until(lambda: _is_back(listener.store, Keys()), "a server that is back")
    listener.expect("another subscription")
    publish(own_server)
    listener.expect("a message")


@pytest.mark.thorough
def test_a_message_of_any_node_of_a_cluster_wakes(cluster: Cluster) -> None:
    """So a script on the new node of a slot wakes a worker that still listens on the old one."""
    with listening(cluster.url) as listener:
        listener.expect("the subscription")
        with cluster.owner.client() as owner:
            wait_until(lambda: owner.pubsub_numsub(CHANNEL)[0][1], "a subscription")
        for node in cluster.nodes:
            with node.client() as client:
                client.publish(CHANNEL, "")
            listener.expect(f"a message of {node.id}")


class ShardListener(WakeupListener):
    """A listener of several shards of a cluster, whose nodes are known, that counts wake-ups."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self.home = Store(cluster.url)
        shards = ShardEntry("tenants", ("tenant",), count).shards
        self.stores = {
            shard: Store(cluster.url, prefix=shard_prefix(DEFAULT_PREFIX, shard), beside=self.home)
            for shard in shards
        }
        self.wakeups = Counter[Shard]()
        self.node_of = {
            shard: cluster.owner_of(cluster.slot_of(shard_prefix(DEFAULT_PREFIX, shard)))
            for shard in shards
        }
        for shard in shards:
            self.call(shard)
        super().__init__([self._channel(shard) for shard in shards])

    @staticmethod
    def keys(shard: Shard) -> Keys:
        return Keys(shard_prefix(DEFAULT_PREFIX, shard))

    def _channel(self, shard: Shard) -> Channel:
        name = self.keys(shard).wakeup_channel("tests")
        return Channel(self.stores[shard], name, partial(self.wakeups.update, [shard]))

    def call(self, shard: Shard) -> None:
        probe(self.stores[shard], self.keys(shard))

    def publish(self, shard: Shard) -> int:
        """Publish as scripts do; return who has received it, as they count that."""
        with self.node_of[shard].client() as client:
            return int(client.publish(self.keys(shard).wakeup_channel("tests"), ""))

    def expect_wakeup(self, shard: Shard) -> None:
        before = self.wakeups[shard]
        assert self.publish(shard) == 1
        wait_until(lambda: self.wakeups[shard] > before, f"a wake-up of {shard}")

    def close(self) -> None:
        super().close()
        for store in (self.home, *self.stores.values()):
            store.close()


@pytest.mark.thorough
def test_one_connection_to_each_node_has_the_channels_of_its_shards(cluster: Cluster) -> None:
    """A script counts who has received its message, and a node counts its own subscribers."""
    listener = ShardListener(cluster, 6)
    listener.start()
    wait_until(lambda: len(listener.wakeups) == 6, "all subscriptions")
    for shard in listener.stores:
        listener.expect_wakeup(shard)
    for node in cluster.masters():
        with node.client() as client:
            assert len(client.client_list("pubsub")) == 1
    listener.close()


@pytest.mark.thorough
def test_a_lost_node_silences_its_own_channels_only(cluster: Cluster) -> None:
    listener = ShardListener(cluster, 6)
    listener.start()
    wait_until(lambda: len(listener.wakeups) == 6, "all subscriptions")
    lost = next(node for node in cluster.masters() if node is not cluster.owner)
    gone = [shard for shard, node in listener.node_of.items() if node is lost]
    others = [shard for shard, node in listener.node_of.items() if node is not lost]
    lost.signal(signal.SIGSTOP)
    for shard in gone[:1]:
        with pytest.raises(StoreUnavailableError):
            listener.call(shard)
    for shard in others:
        listener.expect_wakeup(shard)
    listener.wakeups.clear()
    lost.signal(signal.SIGCONT)
    for shard in gone:
        store, keys = listener.stores[shard], listener.keys(shard)
        wait_until(lambda: _is_back(store, keys), "a node that is back")  # noqa: B023
    wait_until(lambda: {*gone} <= {*listener.wakeups}, "subscriptions to the node that is back")
    for shard in listener.stores:
        listener.expect_wakeup(shard)
    listener.close()


def _is_back(store: Store, keys: Keys) -> bool:
    with suppress(StoreError):
        probe(store, keys)
    return not store.breaker.is_open
