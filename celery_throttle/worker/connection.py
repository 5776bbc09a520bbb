"""What a worker has as long as one connection to the broker lasts.

:class:`BrokerConnection` has what all shards share, :class:`ShardLink` what one shard has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery.worker import state

from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.gate import Gate, attach_gates
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.poller import Poller, Scheduler
from celery_throttle.worker.hooks.alarm import Alarm
from celery_throttle.worker.hooks.pool import make_pool
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.shard import Shard
from celery_throttle.worker.waiting.broker_wait import BrokerWaitPolicy
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import ParkingPolicy
from celery_throttle.worker.waiting.policy import WaitingPolicy
from celery_throttle.worker.waiting.prefetch import make_prefetch
from celery_throttle.worker.waiting.republish import Republisher


class BrokerConnection:
    """The parts that all shards of a worker share over one connection to the broker.

    Args:
        consumer: Celery's consumer.
        timers: the timers of the worker.
        shards: all shards of the worker.
        shard_of: returns the shard that decides about a request.
    """

    def __init__(
        self,
        consumer: Any,
        timers: Timers,
        shards: Sequence[Shard],
        shard_of: Callable[[Any], Shard],
    ) -> None:
        self.consumer = consumer
        self.timers = timers
        self._shard_of = shard_of
        self.routing = Routing(consumer)
        self.prefetch = make_prefetch(consumer)
        self.republisher = Republisher(consumer, self.routing)
        self.pool = make_pool(consumer, timers, self.readmit)
        self.scheduler = Scheduler(consumer, timers, self.pool, [each.claims for each in shards])
        #: Without an event loop, requests come to the gates in several threads or greenlets.
        self.deciding = threading.RLock()
        self._links = {shard: ShardLink(shard, self) for shard in shards}
        attach_gates(consumer.app, [link.gate for link in self._links.values()], self.gate_for)

    def gate_for(self, request: Any) -> Gate:
        """Return the gate of the shard that decides about a request."""
        return self._links[self._shard_of(request)].gate

    def readmit(self, request: Any) -> None:
        """Bring a request to the gate once more."""
        # Celery drops reserved requests when it loses the broker, which delivers them again.
        if request not in state.reserved_requests:
            self.gate_for(request).end(request)
            return
        try:
            self.consumer.on_task_request(request)
        except Exception as error:  # noqa: BLE001  # of a result backend, as for a revoked task
            self.gate_for(request).delay(request, error)

    def count_delayed(self, shard: Shard) -> int:
        """Return the number of tasks of a shard that wait in this worker, unacknowledged."""
        return len(self._links[shard].delayed)

    def open(self) -> None:
        """Begin to poll for tasks that wait in lines."""
        for link in self._links.values():
            link.open()

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        self.scheduler.stop()
        for link in self._links.values():
            link.close()
        self.republisher.close()


class ShardLink:
    """The parts of one shard over one connection to the broker."""

    def __init__(self, shard: Shard, connection: BrokerConnection) -> None:
        self._shard = shard
        self._connection = connection
        consumer, timers, pool = connection.consumer, connection.timers, connection.pool
        self._outcome_alarm = Alarm(timers, shard.outcomes.report)
        self.delayed = DelayedTasks(
            timers, connection.republisher, connection.prefetch, connection.readmit
        )
        waiting = self._make_waiting()
        self.gate = Gate(
            shard.throttle,
            waiting,
            shard.slots,
            outage=shard.outage,
            delayed=self.delayed,
            backoff=shard.backoff,
            pool=pool,
            outcomes=shard.outcomes,
            timers=timers,
            readmit=connection.readmit,
            report_ungated=shard.status.report_ungated,
            refresh_rules=shard.refresh_rules,
            deciding=connection.deciding,
        )
        self._poller = Poller(
            connection.scheduler,
            consumer,
            timers,
            call=shard.call,
            revoked=shard.revoked,
            dispatcher=Dispatcher(
                consumer, shard.claims, shard.quarantine, pool, timers, shard.outcomes
            ),
            outage=shard.outage,
        )
        shard.routing = connection.routing
        shard.claims.on_settled = self._poller.on_settled
        shard.slots.on_released = self._poller.on_released
        shard.wakeup.on_wakeup = self._poller.on_wakeup
        shard.call.take_acknowledged = waiting.take_acknowledged
        shard.outcomes.report_in = self._report_outcomes_in
        shard.on_return = self._on_return

    def _make_waiting(self) -> WaitingPolicy:
        shard, throttle = self._shard, self._shard.throttle
        new_token = shard.claims.reserve_tokens
        if throttle.settings.waiting == "broker":
            return BrokerWaitPolicy(throttle, shard.slots, new_token, self.delayed)
        return ParkingPolicy(
            throttle,
            shard.slots,
            new_token,
            self._connection.routing,
            parked=lambda wait: self._poller.poll_in(wait - tuning.BOOKING_HORIZON_SECONDS),
        )

    def open(self) -> None:
        """Begin to poll for tasks that wait in lines."""
        shard = self._shard
        if self._connection.pool.drops_tasks:
            shard.leases.release_dropped()
        if shard.membership.quarantined:
            shard.quarantine.recall()
        self._poller.poll_in(0)
        self._outcome_alarm.set(0)

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        shard = self._shard
        self._poller.stop()
        self._outcome_alarm.cancel()
        shard.backoff.clear()
        self.gate.stop()
        with shard.call.lock:  # a call that is on its way has ended
            unstarted = shard.claims.unstarted()
        shard.claims.requeue(unstarted, unless_started=True)

    def _report_outcomes_in(self, seconds: float) -> None:
        if self._connection.scheduler.is_running:
            self._outcome_alarm.set(seconds)

    def _on_return(self) -> None:
        """Let delayed tasks join their lines, and poll: the server is back."""
        if self._connection.scheduler.is_running:
            self.delayed.readmit_all()
            self._poller.poll_in(0)
