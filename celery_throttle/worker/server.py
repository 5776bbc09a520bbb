"""What the shards of a worker on one server, or in one cluster, share: threads and subscriptions.

Each store has its own circuit breaker: a node of a cluster that is lost stops its own shards.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.worker.claims.call import LeaseThread
from celery_throttle.worker.claims.wakeup import Channel, WakeupListener
from celery_throttle.worker.health.membership import Heartbeats
from celery_throttle.worker.shard import Shard


class Server:
    """One server or cluster, and the shards of a worker that it has.

    Args:
        shards: those shards.
        worker: the name of the worker.
    """

    def __init__(self, shards: Sequence[Shard], worker: str) -> None:
        self._leases = LeaseThread([shard.leases for shard in shards])
        self._heartbeats = Heartbeats([shard.membership for shard in shards])
        limits = [shard.throttle for shard in shards]
        self._wakeups = WakeupListener(
            [
                Channel(own.store, own.keys.wakeup_channel(worker), shard.wake_up)
                for own, shard in zip(limits, shards, strict=True)
            ]
        )
        self._by_store: dict[Store, list[Shard]] = {}
        for shard in shards:
            self._by_store.setdefault(shard.throttle.store, []).append(shard)
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


def _begin_outage(shards: Sequence[Shard], error: StoreError) -> None:
    for shard in shards:
        shard.begin_outage(error)


def servers_of(shards: Iterable[Shard], worker: str) -> list[Server]:
    """Return the servers and clusters of shards."""
    by_cluster: dict[Hashable, list[Shard]] = {}
    for shard in shards:
        by_cluster.setdefault(shard.throttle.store.cluster, []).append(shard)
    return [Server(some, worker) for some in by_cluster.values()]
