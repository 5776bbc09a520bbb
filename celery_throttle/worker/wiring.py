"""Builds the parts of a worker with limits, and gives each part what it uses.

:class:`WorkerParts` live as long as the worker, :class:`ConnectionParts` as long as one connection
to the broker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle.errors import StoreError
from celery_throttle.limits.key import LimitRef
from celery_throttle.messages.routing import Routing
from celery_throttle.observe.status.fleet import is_live
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.gate import Gate, attach_gate
from celery_throttle.worker.admission.requested_limits import has_limits
from celery_throttle.worker.claims.call import ClaimCall
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.leases import WorkerLeases, release_dropped
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.claims.revoked import RevokedTasks
from celery_throttle.worker.claims.scheduler import Scheduler
from celery_throttle.worker.claims.wakeup import WakeupListener
from celery_throttle.worker.fan_out_outcomes import FanOutOutcomes
from celery_throttle.worker.health.backoff import Backoff
from celery_throttle.worker.health.outage import OutageMode
from celery_throttle.worker.hooks import internals
from celery_throttle.worker.hooks.alarm import Alarm
from celery_throttle.worker.hooks.pool import make_pool
from celery_throttle.worker.hooks.pool_shutdown import confirm_before_flush
from celery_throttle.worker.hooks.rate_limit_bypass import bypass_rate_limits
from celery_throttle.worker.hooks.strategies import Strategies
from celery_throttle.worker.hooks.task_events import defer_receipts
from celery_throttle.worker.hooks.timers import make_timers
from celery_throttle.worker.membership.membership import Membership
from celery_throttle.worker.membership.queues import WorkerQueues
from celery_throttle.worker.membership.rules_watch import RulesWatch
from celery_throttle.worker.membership.split_limits import SplitLimits
from celery_throttle.worker.membership.unconsumed_queues import UnconsumedQueues
from celery_throttle.worker.membership.worker_count import WorkerCount
from celery_throttle.worker.request import install
from celery_throttle.worker.slots import TaskSlots
from celery_throttle.worker.status.report import StatusReport
from celery_throttle.worker.waiting.broker_wait import BrokerWaitPolicy
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import ParkingPolicy
from celery_throttle.worker.waiting.policy import WaitingPolicy
from celery_throttle.worker.waiting.prefetch import make_prefetch
from celery_throttle.worker.waiting.republish import Republisher

logger = get_logger(__name__)


class WorkerParts:
    """The parts that live as long as one worker.

    They are made before the pool, which may fork: no thread is started before :meth:`start`.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.throttle: AppLimits = consumer.app.throttle
        #: Of the present connection to the broker, or the last one if that is lost.
        self.connection: ConnectionParts | None = None
        throttle, settings = self.throttle, self.throttle.settings
        store, keys, plans, lease = throttle.store, throttle.keys, throttle.plans, settings.lease
        _ = throttle.swallowed  # made before the pool forks, so that its processes share it
        name = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self.timers = make_timers(consumer)
        self.claims = Claims(store, keys, name, self._on_settled)
        self.slots = TaskSlots(name, self._on_released)
        unconsumed = UnconsumedQueues(keys, throttle.qualify, throttle.run_plan, lease)
        self._queues = WorkerQueues(keys, throttle.qualify, self._routing, unconsumed)
        self.quarantine = Quarantine(
            store, keys, self.claims, lambda: consumer.strategies, self._queues.names_by_lines
        )
        self.status = StatusReport(throttle.observer, throttle.run_plan)
        self.rules = self._make_rules_watch(name)
        self.membership = Membership(
            store,
            keys,
            lambda: throttle.limits,
            throttle.limits_with_keys,
            name,
            lease=lease,
            queues=self._queues,
            worker_count=WorkerCount(consumer.controller.statedb, settings.workers),
            on_return=self._on_return,
            on_heartbeat=self._after_heartbeat,
            on_quarantined=self.quarantine.recall,
        )
        if self.rules is not None:
            self.membership.max_interval = tuning.RULES_POLL_SECONDS
        self.split_limits = SplitLimits(
            consumer,
            name,
            store.url,
            settings.prefix,
            self._queues.names,
            lambda worker: throttle.run_plan(is_live(throttle.observer, worker)),
        )
        self.outage = OutageMode(
            consumer.app,
            keys,
            self.membership,
            self.slots,
            grace=settings.outage_grace,
            has_limits=bool(throttle.limits or throttle.rules_file),
        )
        store.breaker.watcher = self.outage.begin
        self.backoff = Backoff(self.timers)
        self.call = ClaimCall(
            store,
            plans,
            lease,
            self.claims,
            self.slots,
            queues=self._queues,
            backoff=self.backoff,
            acknowledged=self._acknowledged,
            register_limits=self._register_missing,
        )
        self.leases = WorkerLeases(lease, self.claims, self.slots, self.call)
        self.revoked = RevokedTasks(store, self.claims, lease, self.call.queue_keys, self.call.lock)
        self.outcomes = FanOutOutcomes(store, keys, self._report_outcomes_in)
        self.outcome_alarm = Alarm(self.timers, self.outcomes.report)
        self._is_registered = False
        bypass_rate_limits(consumer)
        limited = partial(has_limits, self.throttle)
        defer_receipts(consumer, limited)
        consumer.strategies = Strategies(consumer, install, limited)

    def _make_rules_watch(self, name: str) -> RulesWatch | None:
        throttle = self.throttle
        if throttle.rules_file is None:
            return None
        return RulesWatch(throttle.rules_file, throttle.plans, throttle.run_plan, name)

    def start(self) -> None:
        """Start, or continue over a new connection to the broker."""
        throttle = self.throttle
        internals.log_broken(self.consumer)
        confirm_before_flush(self.consumer)
        connection = self.connection = ConnectionParts(self)
        self._poll_rules()  # before the limits of the code: they are not in force for a moment
        self._register()
        self.membership.start()
        self.split_limits.begin()
        prefix = throttle.settings.prefix
        other_prefix = "" if prefix == DEFAULT_PREFIX else f", prefix {prefix!r}"
        logger.info("Limits are decided by %s%s", throttle.store.url, other_prefix)
        self.status.begin()
        self.leases.start()
        connection.open()

    def attach_to_loop(self) -> None:
        """Attach to the event loop, which was reset if the connection was lost."""
        self.timers.attach()
        if self.connection is not None:
            self.connection.wakeup.listen()

    def stop(self, *, for_good: bool) -> None:
        """Requeue the tasks that were not started. Running tasks keep their leases.

        ``for_good``: the worker shuts down, so no other connection follows.
        """
        if self.connection is None:
            return
        self.connection.close()
        if for_good:
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
        self.timers.close()

    def stats(self) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows."""
        return {
            "server": self.throttle.store.url,
            "prefix": self.throttle.settings.prefix,
            **self.outage.stats(),
            "workers": self.membership.worker_count.known or 1,
            "claims": len(self.claims),
            "quarantined": self.membership.quarantined,
            **self.status.stats(),
            **({} if self.connection is None else self.connection.gate.stats()),
        }

    def _after_heartbeat(self) -> None:
        self.split_limits.after_heartbeat()
        self._poll_rules()
        self.status.run(self.membership.newest_change)

    def _poll_rules(self) -> None:
        if self.rules is not None:
            self.rules.poll()

    def refresh_rules(self) -> bool:
        """Adopt the rules in force; return whether the app has a rules file."""
        if self.rules is not None:
            self.rules.refresh()
        return self.rules is not None

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
            self.throttle.run_plan(plans.register_missing(refs))

    def _on_return(self) -> None:
        # At once, and in this thread: others take a worker for dead whose lease has run out, and
        # the loop may stand still while a task runs (solo).
        self.leases.renew()
        self.timers.call_soon(self._end_outage)

    def _end_outage(self) -> None:
        self.outage.end()
        if self.rules is not None:
            self.rules.refresh()
        self._register()
        self.call.renew_slots()  # also those that tasks have taken since the server is back
        if self.connection is not None and self.connection.is_open:
            self.connection.gate.leave_outage()
            self.connection.scheduler.poll_in(0)

    # For parts that outlive a connection, and use its parts.

    def _routing(self) -> Routing | None:
        return None if self.connection is None else self.connection.routing

    def _acknowledged(self) -> Sequence[str]:
        return () if self.connection is None else self.connection.waiting.acknowledged()

    def _on_settled(self) -> None:
        if self.connection is not None:
            self.connection.scheduler.on_settled()

    def _on_released(self) -> None:
        if self.connection is not None:
            self.connection.scheduler.on_released()

    def _report_outcomes_in(self, seconds: float) -> None:
        if self.connection is not None and self.connection.is_open:
            self.outcome_alarm.set(seconds)


class ConnectionParts:
    """The parts that live as long as one connection to the broker."""

    def __init__(self, worker: WorkerParts) -> None:
        self._worker = worker
        self._consumer = consumer = worker.consumer
        throttle, timers = worker.throttle, worker.timers
        #: Whether tasks are polled for: from :meth:`open` until :meth:`close`.
        self.is_open = False
        self.routing = Routing(consumer)
        self.prefetch = make_prefetch(consumer)
        self._republisher = Republisher(consumer, self.routing)
        self._pool = pool = make_pool(consumer, timers, self.admit_again)
        delayed = DelayedTasks(timers, self._republisher, self.prefetch, self.admit_again)
        self.waiting = self._make_waiting(delayed)
        self.gate = Gate(
            throttle,
            self.waiting,
            worker.slots,
            outage=worker.outage,
            delayed=delayed,
            backoff=worker.backoff,
            pool=pool,
            outcomes=worker.outcomes,
            admit_again=self.admit_again,
            call_later=timers.call_after,
            call_soon=timers.call_soon,
            report_ungated=worker.status.report_ungated,
            refresh_rules=worker.refresh_rules,
        )
        attach_gate(consumer.app, self.gate)
        self.wakeup = WakeupListener(
            throttle.store,
            throttle.keys.wakeup_channel(worker.claims.worker),
            consumer.hub,
            self._on_wakeup,
        )
        self.scheduler = Scheduler(
            consumer,
            timers,
            pool,
            call=worker.call,
            claims=worker.claims,
            slots=worker.slots,
            revoked=worker.revoked,
            dispatcher=Dispatcher(
                consumer, worker.claims, worker.quarantine, pool, timers, worker.outcomes
            ),
            wakeup=self.wakeup,
            outage=worker.outage,
            backoff=worker.backoff,
        )
        leases = worker.leases
        self._renewal = consumer.timer.call_repeatedly(leases.interval, leases.renew)

    def _make_waiting(self, delayed: DelayedTasks) -> WaitingPolicy:
        worker, throttle = self._worker, self._worker.throttle
        new_token = worker.claims.reserve_tokens
        if throttle.settings.waiting == "broker":
            return BrokerWaitPolicy(throttle, worker.slots, new_token, delayed)
        return ParkingPolicy(
            throttle,
            worker.slots,
            new_token,
            self.routing,
            parked=lambda wait: self.scheduler.poll_in(wait - tuning.BOOKING_HORIZON_SECONDS),
        )

    def _on_wakeup(self) -> None:
        self.scheduler.on_wakeup()

    def open(self) -> None:
        """Begin to poll for tasks that wait in lines."""
        worker = self._worker
        self.is_open = True
        if self._pool.drops_tasks:
            release_dropped(worker.claims, worker.slots)
        if self._consumer.hub is None:
            worker.attach_to_loop()
        if worker.membership.quarantined:
            worker.quarantine.recall()
        self.scheduler.poll_in(0)
        worker.outcome_alarm.set(0)

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        worker = self._worker
        self.is_open = False
        self.scheduler.stop()
        worker.outcome_alarm.cancel()
        worker.backoff.clear()
        self._consumer.timer.cancel(self._renewal)
        self.wakeup.close()
        self.gate.stop()
        self._republisher.close()
        worker.call.wait_for_end()
        worker.claims.requeue(worker.claims.booked(), unless_started=True)

    def admit_again(self, request: Any) -> None:
        """Bring a request to the gate once more."""
        # Celery drops reserved requests when it loses the broker, which delivers them again.
        if request not in state.reserved_requests:
            self.gate.end(request)
            return
        try:
            self._consumer.on_task_request(request)
        except Exception as error:  # noqa: BLE001  # of a result backend that is told of a revoked task
            self.gate.retry_later(request, error)
