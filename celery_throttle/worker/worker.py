"""What a worker has once: its shards, its timers, and what it attaches to Celery's worker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from celery_throttle.errors import ThrottleError
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker.admission.gate import attach_gates
from celery_throttle.worker.admission.requested_limits import has_limits, limits_of
from celery_throttle.worker.connection import BrokerConnection
from celery_throttle.worker.health.split_limits import SplitLimits
from celery_throttle.worker.hooks import internals
from celery_throttle.worker.hooks.announcements import defer_receipts
from celery_throttle.worker.hooks.prefork import confirm_before_flush
from celery_throttle.worker.hooks.strategies import Strategies, bypass_rate_limits
from celery_throttle.worker.hooks.timers import make_timers
from celery_throttle.worker.request import install
from celery_throttle.worker.shard import HOME, Shard


class ShardMap(Protocol):
    """Which limits belong to which shard."""

    @property
    def shards(self) -> Mapping[str, AppLimits]:
        """The limits of each shard, by the name of the shard. One is named ``"home"``."""

    def find(self, limits: Iterable[str]) -> str:
        """Return the name of the shard that has the limits with these names."""


class OneShard:
    """The map of an app whose limits are all in the home shard."""

    def __init__(self, throttle: AppLimits) -> None:
        self.shards = {HOME: throttle}

    def find(self, _limits: Iterable[str]) -> str:
        """See :class:`ShardMap`."""
        return HOME


class ThrottleWorker:
    """A worker with limits, from its start to its end.

    It is made before the pool, which may fork: no thread is started before :meth:`start`.

    Args:
        consumer: Celery's consumer.
        shard_map: which limits belong to which shard.
    """

    def __init__(self, consumer: Any, shard_map: ShardMap) -> None:
        self.consumer = consumer
        self.name = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self.timers = make_timers(consumer)
        self._throttle: AppLimits = consumer.app.throttle
        #: Over the present connection to the broker, or the last one if that is lost.
        self._connection: BrokerConnection | None = None
        self._shard_map = shard_map
        self._shards = {
            name: Shard(
                name,
                throttle,
                consumer=consumer,
                worker=self.name,
                timers=self.timers,
                routing=self._routing,
            )
            for name, throttle in shard_map.shards.items()
        }
        self._home = self._shards[HOME]
        self._split_limits = SplitLimits(consumer, self._home.membership)
        self._home.on_heartbeat = self._split_limits.after_heartbeat
        bypass_rate_limits(consumer)
        limited = partial(has_limits, self._throttle)
        defer_receipts(consumer, limited)
        consumer.strategies = Strategies(consumer, install, limited)

    def start(self) -> None:
        """Start, or continue over a new connection to the broker."""
        internals.log_broken(self.consumer)
        confirm_before_flush(self.consumer)
        connection = self._connection = BrokerConnection(
            self.consumer, self.timers, [*self._shards.values()], self.shard_of
        )
        attach_gates(self.consumer.app, connection.gates, connection.gate_for)
        for shard in self._shards.values():
            shard.start()
        self._split_limits.begin()
        if self.consumer.hub is None:
            self.attach_to_loop()
        connection.open()

    def attach_to_loop(self) -> None:
        """Attach to the event loop, which was reset if the connection was lost."""
        self.timers.attach()
        if self._connection is not None:
            self._connection.listen()

    def stop(self, *, for_good: bool) -> None:
        """Requeue the tasks that were not started. Running tasks keep their leases.

        ``for_good``: the worker shuts down, so no other connection follows.
        """
        if self._connection is None:
            return
        self._connection.close()
        if for_good:
            for shard in self._shards.values():
                shard.stop()

    def end(self) -> None:
        """End: no task runs any more."""
        for shard in self._shards.values():
            shard.end()
        self.timers.close()

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows: the home shard, then any others by name."""
        connection = self._connection
        shown = {
            name: {**shard.stats(), **({} if connection is None else connection.stats(shard))}
            for name, shard in self._shards.items()
        }
        home = shown.pop(HOME)
        return {**home, **({"shards": shown} if shown else {})}

    def shard_of(self, request: Any) -> Shard:
        """Return the shard that decides about a request: that of its limits.

        A claimed task belongs to the shard of its claim, and a task without limits to the home
        shard. The shard is found once for each request.
        """
        if len(self._shards) == 1:
            return self._home
        task = request.throttle_state
        if task.shard is None:
            task.shard = self._find_shard(request)
        found: Shard = task.shard
        return found

    def _find_shard(self, request: Any) -> Shard:
        claim = request.throttle_state.claim
        if claim is not None:
            return next(each for each in self._shards.values() if each.claims is claim.claims)
        try:
            limits = limits_of(self._throttle, request)
        except ThrottleError:  # the gate of the home shard fails the task
            return self._home
        return self._home if limits is None else self._shards[self._shard_map.find(limits.names)]

    def _routing(self) -> Routing | None:
        return None if self._connection is None else self._connection.routing
