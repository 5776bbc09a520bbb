"""What a worker has once: its shards, its timers, and what it attaches to Celery's worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast
from uuid import uuid4

from celery_throttle.errors import ConfigurationError, StoreError, ThrottleError
from celery_throttle.limiter.parts import Parts
from celery_throttle.limits.shards import HOME, HOME_SHARD, ShardMap
from celery_throttle.limits.shards import Shard as ShardName
from celery_throttle.observe.observer import read_keys
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.admission.gates import attach_gates
from celery_throttle.worker.admission.request_limits import (
    NotComputedError,
    has_limits,
    requirement_of,
)
from celery_throttle.worker.connection import BrokerConnection
from celery_throttle.worker.health.rules_watch import RulesWatch
from celery_throttle.worker.health.split_limits import SplitLimits
from celery_throttle.worker.hooks import internals
from celery_throttle.worker.hooks.announcements import defer_receipts
from celery_throttle.worker.hooks.prefork import confirm_before_flush
from celery_throttle.worker.hooks.strategies import Strategies, bypass_rate_limits
from celery_throttle.worker.hooks.timers import make_timers
from celery_throttle.worker.request import install
from celery_throttle.worker.server import servers_of
from celery_throttle.worker.shard import Shard


class ThrottleWorker:
    """A worker with limits, from its start to its end.

    It is made before the pool, which may fork: no thread is started before :meth:`start`.

    Args:
        consumer: Celery's consumer.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.name = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self.timers = make_timers(consumer)
        throttle: AppLimits = consumer.app.throttle
        self._throttle = throttle
        self._functions = FunctionCalls(throttle, self.timers)
        #: Over the present connection to the broker, or the last one if that is lost. None before
        #: the first one, and after the end.
        self._connection: BrokerConnection | None = None
        #: The shard of each limit, which the calls of the app in this process learn as well.
        self._parts = throttle.parts or Parts(ShardMap(), lambda *_: throttle)
        self._rules = self._watch_rules()
        self._shards = {shard: self._make_shard(shard) for shard in self._parts.shards}
        self._home = self._shards[HOME_SHARD]
        if len(self._shards) > 1:
            outcomes = {str(name): shard.outcomes for name, shard in self._shards.items()}
            for each in outcomes.values():
                each.by_shard = outcomes
        self._servers = servers_of(self._shards.values(), self.name)
        self._split_limits = SplitLimits(consumer, self._home.membership)
        #: What the home shard said of the limits in the others when these last repeated it.
        self._repeated: Sequence[Any] | None = None
        self._home.on_heartbeat = self._after_home_heartbeat
        bypass_rate_limits(consumer)
        limited = partial(has_limits, throttle)
        defer_receipts(consumer, limited)
        consumer.strategies = Strategies(consumer, install, limited)

    def _make_shard(self, shard: ShardName) -> Shard:
        longest = tuning.SHARD_POLL_INTERVAL_SECONDS
        if shard == HOME_SHARD:
            longest = tuning.MAX_POLL_INTERVAL_SECONDS
        return Shard(
            cast("AppLimits", self._parts[shard]),
            self.consumer,
            self.name,
            self.timers,
            names_in=lambda names: [name for name in names if self._parts.has(shard, name)],
            learn=self._parts.assign,
            refresh_rules=self._refresh_rules,
            poll_interval=longest,
        )

    def _watch_rules(self) -> RulesWatch | None:
        throttle, home = self._throttle, self._parts.home
        if throttle.rules_file is None:
            return None
        apply = throttle.plans.apply_rules
        return RulesWatch(throttle.rules_file, home.plans, throttle.run_plan, apply, self.name)

    def _refresh_rules(self) -> bool:
        """Adopt the rules in force; return whether there is a rules file."""
        if self._rules is not None:
            self._rules.refresh()
        return self._rules is not None

    def _poll_rules(self) -> None:
        if self._rules is not None:
            self._rules.poll()

    def _after_home_heartbeat(self) -> None:
        self._split_limits.after_heartbeat()
        self._poll_rules()
        with suppress(StoreError):  # the next heartbeat may succeed
            self._repeat_map()

    def _repeat_map(self) -> None:
        """Let the shards repeat where their limits are, if the home shard has another map."""
        others = [shard for shard in self._shards.values() if shard is not self._home]
        names = {name for shard in others for name in shard.limit_names()}
        if not names:
            return
        home = self._home.throttle
        commands = [("HGET", home.keys.shards, name) for name in sorted(names)]
        _, stored = home.run_plan(read_keys(home.observer, *commands))
        # Each shard has marks of its own of a divided limit.
        if stored != self._repeated:
            replied = [shard.repeat() for shard in others]
            self._repeated = stored if all(replied) else None

    def start(self) -> None:
        """Start, or continue over a new connection to the broker."""
        internals.log_broken(self.consumer)
        confirm_before_flush(self.consumer)
        shards = self._shards.values()
        connection = self._connection = BrokerConnection(
            self.consumer,
            self.timers,
            self._functions,
            [shard.claims for shard in shards],
            self.gate_for,
        )
        for shard in shards:
            shard.connect(connection)
        attach_gates(self.consumer.app, [shard.gate for shard in shards], self.gate_for)
        self._poll_rules()  # before the limits of the code: they are not in force for a moment
        for shard in shards:
            shard.start()
        for shard in shards:  # others may have learned that more limits are there
            shard.register()
        for server in self._servers:
            server.start()
        self._split_limits.begin()
        if self.consumer.hub is None:
            self.timers.attach()
        for shard in shards:
            shard.open(connection)

    def stop(self, *, for_good: bool) -> None:
        """Requeue the tasks that were not started. Running tasks keep their leases.

        ``for_good``: the worker shuts down, so no other connection follows. It may be called again.
        """
        if self._connection is None:
            return
        self._connection.scheduler.stop()
        for shard in self._shards.values():
            shard.close()
        self._connection.republisher.close()
        if for_good:
            for shard in self._shards.values():
                shard.stop()
            for server in self._servers:
                server.stop()
            if self._rules is not None:
                self._rules.stop()
            self._connection = None

    def end(self) -> None:
        """End: no task runs any more."""
        self.stop(for_good=True)  # Celery has not, if it was about to connect to the broker again
        for shard in self._shards.values():
            shard.end()
        self.timers.close()

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows: the home shard, then any others by name."""
        shown = {str(name): shard.stats() for name, shard in self._shards.items()}
        home = shown.pop(HOME)
        return {**home, **({"shards": shown} if shown else {})}

    def gate_for(self, request: Any) -> Gate:
        """Return the gate that decides about a request: that of the shard of its limits.

        A task that was claimed with its units belongs to the shard of its claim, and a task without
        limits to the home shard, as does one whose limits are in two shards, which fails there. The
        shard is found once for each request.
        """
        if len(self._shards) == 1:
            return self._home.gate
        task = request.throttle_state
        if task.shard is None:
            task.shard = self._find_shard(request)
        gate: Gate = (task.shard or self._home).gate
        return gate

    def _find_shard(self, request: Any) -> Shard | None:
        """Return the shard of a request; None as long as threads compute which limits it has."""
        task = request.throttle_state
        claim = task.claim
        if claim is not None and (claim.has_units or claim.is_surplus):
            return next(each for each in self._shards.values() if each.claims is claim.claims)
        try:
            limits = self._functions.limits_of(request, self._home.gate.delayed.end)
            refs = () if limits is None else requirement_of(limits, request).refs
        except NotComputedError:
            return None
        except ThrottleError:  # the gate raises it as well, and fails the task
            return self._home
        try:
            return self._shards[self._throttle.run_plan(self._parts.find_shard(refs))]
        except (ConfigurationError, StoreError) as error:
            task.shard_error = error
            return self._home
