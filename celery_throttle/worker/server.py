"""What the shards of a worker on one server, or in one cluster, share: threads and subscriptions.

Each store has its own circuit breaker: a node of a cluster that is lost stops its own shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from celery_throttle.errors import StoreError
from celery_throttle.worker.claims.call import LeaseThread
from celery_throttle.worker.claims.wakeup import Channel, WakeupListener
from celery_throttle.worker.health.membership import Heartbeats
from celery_throttle.worker.shard import Shard

K = TypeVar("K")


class Server:
    """One server or cluster, and the shards of a worker that it has.

    Args:
        shards: those shards.
        worker: the name of the worker.
    """

    def __init__(self, shards: Sequence[Shard], worker: str) -> None:
        self._leases = LeaseThread([shard.leases for shard in shards])
        self._wakeups = WakeupListener([_channel_of(shard, worker) for shard in shards])
        self._by_store = _grouped(shards, lambda shard: shard.throttle.store)
        self._heartbeats = Heartbeats(
            {store: [one.membership for one in some] for store, some in self._by_store.items()}
        )
        for store, some in self._by_store.items():
            store.breaker.watcher = partial(_begin_outage, some)

    def start(self) -> None:
        """Start the threads, if they do not run. Not earlier: the pool forks before."""
        self._leases.start()
        self._heartbeats.start()
        self._wakeups.start()

    def stop(self) -> None:
        """End the threads, within a second; that for leases when no task runs any more."""
        self._leases.stop()
        self._heartbeats.stop()
        self._wakeups.close()
        for store in self._by_store:  # no heartbeat finds out any more that it is back
            store.breaker.watcher = None


def _channel_of(shard: Shard, worker: str) -> Channel:
    store, keys = shard.throttle.store, shard.throttle.keys
    return Channel(store, keys.wakeup_channel(worker), shard.wake_up)


def _begin_outage(shards: Sequence[Shard], error: StoreError) -> None:
    for shard in shards:
        shard.begin_outage(error)


def servers_of(shards: Iterable[Shard], worker: str) -> list[Server]:
    """Return the servers and clusters of shards."""
    by_cluster = _grouped(shards, lambda shard: shard.throttle.store.cluster)
    return [Server(some, worker) for some in by_cluster.values()]


def _grouped(shards: Iterable[Shard], key: Callable[[Shard], K]) -> dict[K, list[Shard]]:
    found: dict[K, list[Shard]] = {}
    for shard in shards:
        found.setdefault(key(shard), []).append(shard)
    return found
