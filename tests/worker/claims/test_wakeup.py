"""An idle worker is woken up, also after its server was lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.worker.claims.wakeup import WakeupListener
from tests.servers.cluster import Cluster
from tests.servers.server import Server, wait_until

CHANNEL = Keys().wakeup_channel("tests")


class Listener(WakeupListener):
    """A listener that counts its wake-ups."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, {CHANNEL: self._count})
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


@pytest.mark.parametrize("reset", [False, True])
def test_it_subscribes_again_after_the_server_was_lost(
    own_server: Server, listener: Listener, *, reset: bool
) -> None:
    listener.expect("the subscription")
    if reset:  # a server that dies with unread data resets the connection
        own_server.signal(signal.SIGSTOP)
    own_server.stop()
    own_server.start()
    listener.expect("another subscription")
    publish(own_server)
    listener.expect("a message")


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
