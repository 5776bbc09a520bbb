"""What the shards of a worker on one server share: its threads, and the watcher of its breaker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_throttle.errors import StoreError
from celery_throttle.store.client import Store
from celery_throttle.worker.claims.call import LeaseThread
from celery_throttle.worker.claims.wakeup import WakeupListener
from celery_throttle.worker.health.membership import Heartbeats
from celery_throttle.worker.shard import Shard


class Server:
    """One server, and the shards of a worker that it has.

    Args:
        store: the server.
        shards: those shards.
        worker: the name of the worker.
    """

    def __init__(self, store: Store, shards: Sequence[Shard], worker: str) -> None:
        self._shards = shards
        self._leases = LeaseThread([shard.leases for shard in shards])
        self._heartbeats = Heartbeats([shard.membership for shard in shards])
        self._wakeups = WakeupListener(
            store, {shard.throttle.keys.wakeup_channel(worker): shard.wake_up for shard in shards}
        )
        store.breaker.watcher = self._begin_outage

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

    def _begin_outage(self, error: StoreError) -> None:
        for shard in self._shards:
            shard.begin_outage(error)


def servers_of(shards: Iterable[Shard], worker: str) -> list[Server]:
    """Return the servers of shards; shards with one store are on one server."""
    by_store: dict[Store, list[Shard]] = {}
    for shard in shards:
        by_store.setdefault(shard.throttle.store, []).append(shard)
    return [Server(store, some, worker) for store, some in by_store.items()]
