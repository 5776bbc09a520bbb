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
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.claims.dispatch import Dispatcher
from celery_throttle.worker.claims.leases import release_dropped
from celery_throttle.worker.claims.poller import Poller
from celery_throttle.worker.claims.scheduler import Scheduler
from celery_throttle.worker.claims.wakeup import WakeupListener
from celery_throttle.worker.hooks.pool import make_pool
from celery_throttle.worker.hooks.timers import Alarm, Timers
from celery_throttle.worker.shard import Shard
from celery_throttle.worker.waiting.broker_wait import BrokerWaitPolicy
from celery_throttle.worker.waiting.delayed import DelayedTasks, Republisher
from celery_throttle.worker.waiting.park import ParkingPolicy, WaitingPolicy
from celery_throttle.worker.waiting.prefetch import make_prefetch


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

    @property
    def gates(self) -> Sequence[Gate]:
        """The gates of all shards."""
        return [link.gate for link in self._links.values()]

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

    def stats(self, shard: Shard) -> dict[str, Any]:
        """Return what ``celery inspect stats`` shows of the gate of a shard."""
        return self._links[shard].gate.stats()

    def open(self) -> None:
        """Begin to poll for tasks that wait in lines."""
        for link in self._links.values():
            link.open()

    def listen(self) -> None:
        """Subscribe to the wake-ups of all shards."""
        for link in self._links.values():
            link.wakeup.listen()

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        self.scheduler.stop()
        for link in self._links.values():
            link.close()
        self.republisher.close()


class ShardLink:
    """The parts of one shard over one connection to the broker."""

    def __init__(self, shard: Shard, connection: BrokerConnection) -> None:
        self.shard = shard
        self._consumer = consumer = connection.consumer
        timers, pool, throttle = connection.timers, connection.pool, shard.throttle
        readmit = connection.readmit
        self._pool = pool
        #: Whether tasks are polled for: from :meth:`open` until :meth:`close`.
        self._is_open = False
        self._outcome_alarm = Alarm(timers, shard.outcomes.report)
        delayed = DelayedTasks(timers, connection.republisher, connection.prefetch, readmit)
        waiting = self._make_waiting(delayed, connection.routing)
        self.gate = Gate(
            throttle,
            waiting,
            shard.slots,
            outage=shard.outage,
            delayed=delayed,
            backoff=shard.backoff,
            pool=pool,
            outcomes=shard.outcomes,
            readmit=readmit,
            call_later=timers.call_after,
            call_soon=timers.call_soon,
            report_ungated=shard.status.report_ungated,
            refresh_rules=shard.refresh_rules,
            deciding=connection.deciding,
        )
        channel = throttle.keys.wakeup_channel(shard.claims.worker)
        self.wakeup = WakeupListener(throttle.store, channel, consumer.hub, self._on_wakeup)
        self._poller = Poller(
            connection.scheduler,
            consumer,
            timers,
            call=shard.call,
            revoked=shard.revoked,
            dispatcher=Dispatcher(
                consumer, shard.claims, shard.quarantine, pool, timers, shard.outcomes
            ),
            wakeup=self.wakeup,
            outage=shard.outage,
        )
        self._renewal = consumer.timer.call_repeatedly(shard.leases.interval, shard.leases.renew)
        shard.claims.on_settled = self._poller.on_settled
        shard.slots.on_released = self._poller.on_released
        shard.call.take_acknowledged = waiting.take_acknowledged
        shard.outcomes.report_in = self._report_outcomes_in
        shard.on_return = self._on_return

    def _make_waiting(self, delayed: DelayedTasks, routing: Routing) -> WaitingPolicy:
        shard, throttle = self.shard, self.shard.throttle
        new_token = shard.claims.reserve_tokens
        if throttle.settings.waiting == "broker":
            return BrokerWaitPolicy(throttle, shard.slots, new_token, delayed)
        return ParkingPolicy(
            throttle,
            shard.slots,
            new_token,
            routing,
            parked=lambda wait: self._poller.poll_in(wait - tuning.BOOKING_HORIZON_SECONDS),
        )

    def _on_wakeup(self) -> None:
        self._poller.on_wakeup()

    def open(self) -> None:
        """Begin to poll for tasks that wait in lines."""
        shard = self.shard
        self._is_open = True
        if self._pool.drops_tasks:
            release_dropped(shard.claims, shard.slots)
        if shard.membership.quarantined:
            shard.quarantine.recall()
        self._poller.poll_in(0)
        self._outcome_alarm.set(0)

    def close(self) -> None:
        """Claim no more, and requeue the tasks that the pool does not have."""
        shard = self.shard
        self._is_open = False
        self._poller.stop()
        self._outcome_alarm.cancel()
        shard.backoff.clear()
        self._consumer.timer.cancel(self._renewal)
        self.wakeup.close()
        self.gate.stop()
        shard.call.wait_for_end()
        shard.claims.requeue(shard.claims.unstarted(), unless_started=True)

    def _report_outcomes_in(self, seconds: float) -> None:
        if self._is_open:
            self._outcome_alarm.set(seconds)

    def _on_return(self) -> None:
        """Let delayed tasks join their lines, and poll: the server is back."""
        if self._is_open:
            self.gate.leave_outage()
            self._poller.poll_in(0)
