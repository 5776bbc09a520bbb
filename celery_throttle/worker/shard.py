"""What a worker has for one shard: a set of limits with keys of their own, on one server.

A worker makes its shards in one place, see ``worker.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import StoreError
from celery_throttle.limits.key import LimitRef
from celery_throttle.operations.define import register_missing
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker.claims.call import ClaimCall
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.claims.leases import WorkerLeases
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.membership import Membership
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.health.queues import WorkerQueues
from celery_throttle.worker.health.report import StatusReport
from celery_throttle.worker.health.rules_watch import RulesWatch
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.slots import TaskSlots

logger = get_logger(__name__)

#: The shard of the limits that no other shard has.
HOME = "home"


class Shard:
    """The parts of a worker for one shard. They live as long as the worker.

    They are made before the pool, which may fork: no thread is started before :meth:`start`.

    Some functions that they call are those of the present connection to the broker, which sets
    them; see :class:`~celery_throttle.worker.connection.ShardLink`.

    Args:
        name: the name of the shard; ``"home"`` where there is no other.
        throttle: the limits of the shard, with its server and prefix.
        consumer: Celery's consumer.
        worker: the name of the worker, which no other worker has.
        timers: the timers of the worker.
        routing: returns the routing of the present connection to the broker; None before the first.
    """

    #: Called at the end of an outage.
    on_return: Callable[[], None]
    #: Called in the thread of the heartbeats, after each of them.
    on_heartbeat: Callable[[], None]

    def __init__(
        self,
        name: str,
        throttle: AppLimits,
        *,
        consumer: Any,
        worker: str,
        timers: Timers,
        routing: Callable[[], Routing | None],
    ) -> None:
        self.name = name
        self.throttle = throttle
        self._timers = timers
        self.on_return = self.on_heartbeat = _ignore
        store, keys, settings = throttle.store, throttle.keys, throttle.settings
        self.claims = Claims(store, keys, worker, on_settled=_ignore)
        self.slots = TaskSlots(worker, on_released=_ignore)
        self.queues = WorkerQueues(throttle, routing)
        self.quarantine = Quarantine(
            self.claims, lambda: consumer.strategies, self.queues.names_by_lines
        )
        self.status = StatusReport(throttle)
        self.rules = self._make_rules_watch(worker)
        self.membership = Membership(
            throttle,
            worker,
            self.queues,
            on_return=self._on_return,
            on_heartbeat=self._after_heartbeat,
        )
        self.outage = OutageMode(throttle, self.membership, self.slots)
        store.breaker.watcher = self.outage.begin
        self.backoff = Backoff(timers)
        self.call = ClaimCall(
            store,
            throttle.plans,
            settings.lease,
            self.claims,
            self.slots,
            queues=self.queues,
            backoff=self.backoff,
            take_acknowledged=tuple,
            register_limits=self._register_missing,
        )
        self.leases = WorkerLeases(self.call)
        self.revoked = RevokedTasks(
            self.claims, settings.lease, self.call.queue_keys, self.call.lock
        )
        self.outcomes = FanOutOutcomes(store, keys, report_in=_ignore)
        self._is_registered = False

    def _make_rules_watch(self, worker: str) -> RulesWatch | None:
        throttle = self.throttle
        if throttle.rules_file is None:
            return None
        return RulesWatch(throttle.rules_file, throttle.plans, throttle.run_plan, worker)

    def start(self) -> None:
        """Start, or continue over a new connection to the broker."""
        throttle = self.throttle
        self._poll_rules()  # before the limits of the code: they are not in force for a moment
        self._register()
        self.membership.start()
        prefix = throttle.settings.prefix
        other_prefix = "" if prefix == DEFAULT_PREFIX else f", prefix {prefix!r}"
        logger.info("Limits are decided by %s%s", throttle.store.url, other_prefix)
        self.status.begin()
        self.leases.start()

    def stop(self) -> None:
        """Stop, as the worker shuts down. Running tasks keep their leases."""
        self.leases.stop()
        self.call.report()
        self.membership.stop()
        if self.rules is not None:
            self.rules.stop()

    def end(self) -> None:
        """End: no task runs any more. Tasks that are not acknowledged were not begun or cut off."""
        for request in self.slots.requests():
            self.slots.end(request)
        self.claims.requeue(self.claims)
        self.outcomes.report()

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows of the shard."""
        return {
            "server": self.throttle.store.url,
            "prefix": self.throttle.settings.prefix,
            **self.outage.stats(),
            "workers": self.membership.workers or 1,
            "claims": len(self.claims),
            "quarantined": self.membership.quarantined,
            **self.status.stats(),
        }

    def refresh_rules(self) -> bool:
        """Adopt the rules in force; return whether there is a rules file."""
        if self.rules is not None:
            self.rules.refresh()
        return self.rules is not None

    def _poll_rules(self) -> None:
        if self.rules is not None:
            self.rules.poll()

    def _register(self) -> None:
        """Register the limits once. A limit that is missing later is registered when it is used."""
        if not self._is_registered:
            with suppress(StoreError):  # it is done at the end of the outage, or by the gate
                self.throttle.register()
                self._is_registered = True

    def _register_missing(self) -> None:
        plans = self.throttle.plans
        refs = [LimitRef(name, None) for name in plans.limits]
        with suppress(StoreError):  # then the gate registers what is missing, task by task
            self.throttle.run_plan(register_missing(plans, refs))

    def _after_heartbeat(self) -> None:
        self.queues.discard_deleted()
        if self.membership.quarantined:
            self.quarantine.recall()
        self.on_heartbeat()
        self._poll_rules()
        self.status.run(self.membership.newest_change)

    def _on_return(self) -> None:
        # At once, and in this thread: others take a worker for dead whose lease has run out, and
        # the loop may stand still while a task runs (solo).
        self.leases.renew()
        self._timers.call_soon(self._end_outage)

    def _end_outage(self) -> None:
        self.outage.end()
        self.refresh_rules()
        self._register()
        self.call.renew_slots()  # also those that tasks have taken since the server is back
        self.on_return()


def _ignore(*_: Any) -> None:
    """Do nothing, until there is a connection to the broker."""
