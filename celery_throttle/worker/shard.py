"""What a worker has for one shard: a set of limits with keys of their own, on one server.

A worker makes its shards in one place, see ``worker.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery.utils.log import get_logger

from celery_throttle.errors import ConfigurationError, LimitError, StoreError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.shards import OtherShardError
from celery_throttle.operations.define import register_missing
from celery_throttle.operations.plan import Plan
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.admission.lookups import KeyLookups
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.call import ClaimCall, WorkerLeases
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.claims.poller import Poller
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.connection import BrokerConnection
from celery_throttle.worker.error_log import ErrorLog
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.health.membership import Membership
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.health.queues import WorkerQueues
from celery_throttle.worker.health.report import StatusReport
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.waiting.broker_wait import BrokerWaitPolicy
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import ParkingPolicy, WaitingPolicy

logger = get_logger(__name__)


class Shard:
    """The parts of a worker for one shard.

    Most live as long as the worker. They are made before the pool, which may fork: no thread is
    started before :meth:`start`. A gate, a poller and the delayed tasks belong to one connection to
    the broker, see :meth:`connect`.

    Args:
        throttle: the limits of the shard, with its server and prefix.
        consumer: Celery's consumer.
        worker: the name of the worker, which no other worker has.
        timers: the timers of the worker.
        names_in: returns those of some limits that are in the shard.
        learn: remembers the shards of limits; returns whether that was unknown.
        refresh_rules: adopts the rules in force; returns whether there is a rules file.
        poll_interval: longest time between two polls of a worker with a free process, in seconds.
    """

    gate: Gate
    _poller: Poller
    _delayed: DelayedTasks

    def __init__(
        self,
        throttle: AppLimits,
        consumer: Any,
        worker: str,
        timers: Timers,
        *,
        names_in: Callable[[Iterable[str]], list[str]],
        learn: Callable[[Mapping[str, str]], bool],
        refresh_rules: Callable[[], bool],
        poll_interval: float,
    ) -> None:
        self.throttle = throttle
        self._timers = timers
        self._names_in = names_in
        self._learn = learn
        self._refresh_rules = refresh_rules
        #: The present connection to the broker, or the last one if that is lost.
        self._connection: BrokerConnection | None = None
        #: Called in the thread of the heartbeats, after each of them.
        self.on_heartbeat: Callable[[], None] = _ignore
        store, keys = throttle.store, throttle.keys
        self.claims = Claims(store, keys, worker, on_settled=_ignore)
        self.slots = TaskSlots(worker, on_released=_ignore)
        self.queues = WorkerQueues(
            throttle, lambda: None if self._connection is None else self._connection.routing
        )
        self._quarantine = Quarantine(
            self.claims, lambda: consumer.strategies, self.queues.names_by_lines
        )
        self._status = StatusReport(throttle, names_in)
        self.membership = Membership(
            throttle,
            worker,
            self.queues,
            names_in=names_in,
            on_return=self._on_return,
            on_heartbeat=self._after_heartbeat,
        )
        self._outage = OutageMode(throttle, self.membership, self.slots)
        self._call = ClaimCall(
            throttle,
            self.claims,
            self.slots,
            self.queues,
            restore=self._restore,
            poll_interval=poll_interval,
        )
        self.leases = WorkerLeases(self._call)
        self._revoked = RevokedTasks(self._call)
        self._lookups = KeyLookups(throttle, timers, self._end_delay)
        self.outcomes = FanOutOutcomes(store, keys, timers)
        self._error_log = ErrorLog(
            "Limits that the server has lost cannot be put in force again; tasks that need them "
            "go to the gate."
        )
        #: Limits that were put in force here; None before the first time.
        self._registered: set[str] | None = None

    def connect(self, connection: BrokerConnection) -> None:
        """Make the parts that live as long as a connection to the broker."""
        self._connection = connection
        calls = LoopCalls(connection.timers, connection.late_servers)
        consumer, timers, pool = connection.consumer, connection.timers, connection.pool
        self._delayed = DelayedTasks(
            timers,
            calls,
            connection.republisher,
            connection.prefetch,
            connection.readmit,
            connection.deciding,
        )
        waiting = self._make_waiting(connection)
        self.gate = Gate(
            self.throttle,
            waiting,
            self.slots,
            outage=self._outage,
            delayed=self._delayed,
            calls=calls,
            pool=pool,
            outcomes=self.outcomes,
            timers=timers,
            functions=connection.functions,
            lookups=self._lookups,
            readmit=connection.readmit,
            report_ungated=self._status.report_ungated,
            refresh_rules=self._refresh_rules,
            deciding=connection.deciding,
            stepped_out=connection.stepped_out,
            learn=self._learn,
        )
        dispatcher = Dispatcher(
            consumer, self.claims, self._quarantine, pool, timers, self.outcomes, calls
        )
        self._poller = Poller(
            connection.scheduler,
            consumer,
            timers,
            call=self._call,
            revoked=self._revoked,
            dispatcher=dispatcher,
            outage=self._outage,
            calls=calls,
        )
        self.claims.on_settled = self._poller.on_settled
        self.claims.on_returned = self._poller.on_returned
        self.slots.on_released = self._poller.on_released
        self.outcomes.call = calls.call
        self._call.take_acknowledged = waiting.take_acknowledged

    def _end_delay(self, request: Any) -> None:
        """Bring a request to the gate now, if it is delayed."""
        self._delayed.end(request)

    def _make_waiting(self, connection: BrokerConnection) -> WaitingPolicy:
        throttle, new_token = self.throttle, self.claims.reserve_tokens
        if throttle.settings.waiting == "broker":
            return BrokerWaitPolicy(throttle, self.slots, new_token, self._delayed)
        return ParkingPolicy(
            throttle,
            self.slots,
            new_token,
            connection.routing,
            on_parked=lambda wait: self._poller.poll_in(wait - tuning.BOOKING_HORIZON_SECONDS),
        )

    def start(self) -> None:
        """Start, or continue over a new connection to the broker."""
        throttle = self.throttle
        self.register()
        self.membership.start()
        prefix = throttle.keys.prefix
        other_prefix = "" if prefix == DEFAULT_PREFIX else f", prefix {prefix!r}"
        logger.info("Limits are decided by %s%s", throttle.store.url, other_prefix)
        self._status.begin()

    def begin_outage(self, error: StoreError) -> None:
        """Begin an outage: the server does not answer. Thread-safe."""
        self._outage.begin(error)

    def wake_up(self) -> None:
        """Poll soon: a line may be due. Thread-safe."""
        self._poller.on_wakeup()

    def open(self, connection: BrokerConnection) -> None:
        """Begin to poll for tasks that wait in lines."""
        if connection.pool.drops_tasks:
            self.leases.release_dropped()
        if self.membership.quarantined:
            self._quarantine.recall()
        self._poller.poll_in(0)

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        self._poller.stop()
        self.gate.stop()
        with self._call.lock:  # a call that is on its way has ended
            unstarted = self.claims.unstarted()
        self.claims.requeue(unstarted, unless_started=True)

    def stop(self) -> None:
        """Stop, as the worker shuts down. Running tasks keep their leases."""
        self._call.report()
        self.membership.stop()

    def end(self) -> None:
        """End: no task runs any more. Tasks that are not acknowledged were not begun or cut off."""
        for request in self.slots.requests():
            self.slots.end(request)
        self.claims.requeue(self.claims)
        if self._call.has_reports:  # the last report has failed
            self._call.report()
        self.outcomes.report()

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows of the shard."""
        return {
            "server": self.throttle.store.url,
            "prefix": self.throttle.keys.prefix,
            **self._outage.stats(),
            "workers": self.membership.workers or 1,
            "claims": len(self.claims),
            "quarantined": self.membership.quarantined,
            **self._status.stats(),
            "postponed": 0 if self._connection is None else len(self._delayed),
        }

    def register(self) -> None:
        """Register the limits that are in this shard, once; others may become known later.

        A limit that is missing later is registered when it is used.
        """
        names = {*self.limit_names()}
        is_done = self._registered is not None and names <= self._registered
        if not is_done and self._put_in_force(self.throttle.plans.register):
            self._registered = names

    def limit_names(self) -> list[str]:
        """Return the names of the limits of the code that are in this shard."""
        return self._names_in(self.throttle.code_limits)

    def repeat(self) -> bool:
        """Repeat to the home shard that the limits are in this shard, as it may have lost that.

        Returns whether it has replied.
        """
        return self._put_in_force(self._repeat)

    def _repeat(self, limits: Mapping[str, Limits]) -> Plan[None]:
        fence = self.throttle.plans.fence
        if limits and fence is not None:
            yield from fence.repeat(self.throttle.plans, limits)

    def _restore(self) -> None:
        """Put the limits in force of which the server has lost some."""
        context = self.throttle.plans
        try:
            self._put_in_force(
                lambda limits: register_missing(context, [LimitRef(name, None) for name in limits])
            )
        except LimitError as error:  # a later version has defined one; the claim call goes on
            self._error_log.log(error)

    def _put_in_force(self, plan: Callable[[Mapping[str, Limits]], Plan[Any]]) -> bool:
        """Run a plan for the limits of the code that are in this shard; return whether it ended.

        If the home shard says that one of them is elsewhere, it is run for the others.
        """
        throttle = self.throttle
        while True:
            limits = throttle.code_limits
            own = {name: limits[name] for name in self._names_in(limits)}
            try:
                self._learn(throttle.run_plan(plan(own)) or {})
            except OtherShardError as error:
                self._learn(error.assigned)  # or another thread has
                if self._names_in(own) != [*own]:
                    continue
            except ConfigurationError:
                logger.exception("The limits of a shard are not registered")
            except StoreError:  # it is done at the end of the outage, or by the gate
                return False
            return True

    def _after_heartbeat(self) -> None:
        self.queues.discard_deleted()
        if self.membership.quarantined:
            self._quarantine.recall()
        self.on_heartbeat()
        self._status.run(self.membership.newest_change, self.membership.workers or 1)

    def _on_return(self) -> None:
        # At once, and in this thread: others take a worker for dead whose lease has run out, and
        # the loop may be blocked while a task runs (solo).
        self.leases.renew()
        self._outage.end()
        self._refresh_rules()
        self.register()
        self._call.renew_slots()  # also those that tasks have taken since the server is back
        self._timers.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The server is back: let delayed tasks join their lines, and poll."""
        self._lookups.forget()
        if self._connection is not None and self._connection.scheduler.is_running:
            self._delayed.end_all()
            self._poller.poll_in(0)


def _ignore(*_: Any) -> Any:
    """Do nothing, until there is a connection to the broker."""
