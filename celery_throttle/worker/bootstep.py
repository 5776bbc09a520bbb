"""The consumer's step of a worker with limits: makes its parts, starts and stops them.

Each part says what it does: asking, claiming, handing over, leases, the gate and what it decides
with. They live as long as the worker, save those that read one connection to the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from celery import bootsteps
from celery.bootsteps import RUN  # type: ignore[attr-defined]  # missing in the stubs
from celery.utils.log import get_logger
from celery.worker import state

from celery_throttle.errors import StoreError
from celery_throttle.limits.duration import to_us
from celery_throttle.messages.routing import Origin
from celery_throttle.tasks import validation
from celery_throttle.tasks.rate_limit_warning import warn_of_rate_limit
from celery_throttle.worker.admission.gate import Gate, attach_gate, gate_of
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.alarm import Alarm
from celery_throttle.worker.claims.call import Claiming
from celery_throttle.worker.claims.claims import Claims
from celery_throttle.worker.claims.dispatch import HandOver
from celery_throttle.worker.claims.leases import Leases, let_go_of_dropped
from celery_throttle.worker.claims.quarantine import Aside
from celery_throttle.worker.claims.revoked import Revoked
from celery_throttle.worker.claims.scheduler import Asking
from celery_throttle.worker.claims.slots import TaskSlots
from celery_throttle.worker.claims.wakeup import Wake
from celery_throttle.worker.fan_out_outcomes import Outcomes
from celery_throttle.worker.health.backoff import Pace
from celery_throttle.worker.health.membership import Fleet
from celery_throttle.worker.health.outage import Outage
from celery_throttle.worker.health.preflight import check_store
from celery_throttle.worker.pool import processes_of
from celery_throttle.worker.pool_shutdown import let_written_begin
from celery_throttle.worker.queues import Queues
from celery_throttle.worker.rate_limit_bypass import let_claims_pass
from celery_throttle.worker.request import install
from celery_throttle.worker.strategies import Strategies
from celery_throttle.worker.timers import timers_of
from celery_throttle.worker.waiting.broker_wait import BrokerWaitPolicy
from celery_throttle.worker.waiting.delayed import DelayedTasks
from celery_throttle.worker.waiting.park import ParkingPolicy
from celery_throttle.worker.waiting.policy import WaitingPolicy
from celery_throttle.worker.waiting.prefetch import prefetch_of
from celery_throttle.worker.waiting.republish import Sender

logger = get_logger(__name__)


class Lines(bootsteps.StartStopStep):
    """The step: makes the parts of a worker whose tasks have limits, or had some."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        validation.check(c.app.throttle)
        limits = c.app.throttle.limits
        # Without limits there may be lines from before, when the code had some.
        self.enabled = bool(limits) or c.app.throttle.settings.has_server
        if self.enabled:
            for task in list(c.app.tasks.values()):  # any of them may meet a limit in its body
                install(task)
        if limits:
            _warn_of_rate_limits(c.app.throttle, list(c.app.tasks.values()))
            check_store(c.app.throttle)

    def create(self, c: Any) -> Parts:  # type: ignore[override]  # the base gives what it made
        """The parts live as long as the worker, over lost connections to the broker."""
        return Parts(c)

    def register_with_event_loop(self, _c: Any, hub: Any) -> None:
        """The loop was emptied when the connection was lost."""
        self.obj.timers.attach()
        self.obj.wake.listen(hub)

    def stop(self, c: Any) -> None:
        """The connection is lost, or the worker is shutting down."""
        self.obj.stop(for_good=c.blueprint.state != RUN)

    def terminate(self, c: Any) -> None:
        """The worker is shutting down in a hurry."""
        self.stop(c)

    def shutdown(self, _c: Any) -> None:
        """The pool has ended."""
        self.obj.end()

    def info(self, _c: Any) -> dict[str, Any]:  # type: ignore[override]  # the base gives None
        """What ``celery inspect stats`` shows under ``throttle``."""
        return {"throttle": self.obj.stats()} if self.obj else {}


def _warn_of_rate_limits(throttle: Any, limited: Iterable[Any]) -> None:
    """Of tasks that have their limits by a route: of others it was done where they are defined."""
    for task in limited:
        spec = throttle.spec_of(task)
        if spec is not None and getattr(task, "throttle", None) is None:
            warn_of_rate_limit(task, spec)


class Parts:
    """What one worker with limits is made of."""

    def __init__(self, consumer: Any) -> None:
        self._c = consumer
        self._throttle = throttle = consumer.app.throttle
        _ = throttle.swallowed  # the processes of the pool share it
        self.timers = timers = timers_of(consumer)
        store, keys, lease = throttle.store, throttle.keys, throttle.settings.lease
        worker = f"{consumer.hostname}:{os.getpid()}:{uuid4().hex[:8]}"
        self._claims = Claims(store, keys, worker, self._on_settled)
        self._slots = TaskSlots(worker, self._on_released)
        self._queues = Queues(throttle)
        self._aside = Aside(
            throttle,
            self._claims,
            names=lambda: consumer.strategies,
            queues=self._queues.lines,
        )
        self._fleet = Fleet(
            throttle,
            worker,
            back=self._on_back,
            recall=self._aside.recall,
            state_db=consumer.controller.statedb,
            queues=self._queues,
        )
        self._outage = Outage(throttle, self._fleet, self._slots)
        store.breaker.watcher = self._outage.begin
        self._pace = Pace(timers)
        self._claiming = Claiming(throttle, self._claims, self._slots, self._queues, self._pace)
        self._leases = Leases(lease, self._claims, self._slots, self._claiming)
        self.wake = Wake(store, keys.wakeup_channel(worker), self._on_wake)
        self._asking = Asking(
            consumer,
            timers,
            self._claiming,
            self._claims,
            self._slots,
            revoked=Revoked(store, self._claims, to_us(lease), self._claiming.queue_keys),
            outage=self._outage,
            pace=self._pace,
            listen=self.wake.listen,
        )
        self._outcomes = Outcomes(throttle, self._tell_in)
        self._telling = Alarm(timers, self._outcomes.tell)
        self._registered = False
        self._running = False
        let_claims_pass(consumer)
        consumer.strategies = self._strategies = Strategies(consumer)

    def _on_settled(self) -> None:
        self._asking.on_settled()

    def _on_released(self) -> None:
        self._asking.on_released()

    def _on_wake(self) -> None:
        self._asking.on_wake()

    def _tell_in(self, seconds: float) -> None:
        if self._running:
            self._telling.set(seconds)

    def start(self) -> None:
        """Begin, or go on over a new connection to the broker."""
        throttle, c = self._throttle, self._c
        let_written_begin(c)
        self._origin = Origin(c)
        self._queues.use(self._origin)
        self._register()
        self._fleet.start()  # it hears which limits are in force
        processes = processes_of(c, self.timers, self._bring_again)
        self._sender = Sender(c, self._origin)
        prefetch = prefetch_of(c)
        self._strategies.receive = prefetch.receive
        delayed = DelayedTasks(c, self.timers, self._sender, prefetch, self._bring_again)
        waiting = self._make_waiting(delayed)
        gate = Gate(
            throttle,
            waiting,
            self._slots,
            outage=self._outage,
            delayed=delayed,
            pace=self._pace,
            processes=processes,
            outcomes=self._outcomes,
            admit_again=self._bring_again,
            call_later=self.timers.call_after,
            call_soon=self.timers.call_soon,
        )
        attach_gate(c.app, gate)
        self._claiming.use(waiting, processes)
        hand_over = HandOver(c, throttle, self._claims, self._aside, processes, timers=self.timers)
        self._asking.start(processes, hand_over.take)
        limits = ", ".join(
            f"{name} {' and '.join(map(str, own))}"
            for name, own in throttle.settings.limits.items()
        )
        logger.info(
            "Limits of the code: %s. Their server: %s", limits or "none", throttle.store.url
        )
        self._running = True
        if processes.drops:
            let_go_of_dropped(self._claims, self._slots)
        if c.hub is None:
            self.timers.attach()
            self.wake.listen(None)
        self._leases.start(c.timer)
        if self._fleet.aside:
            self._aside.recall()
        self._asking.ask_in(0)
        self._telling.set(0)

    @property
    def _gate(self) -> Any:
        return gate_of(self._c.app)

    def _make_waiting(self, delayed: DelayedTasks) -> WaitingPolicy:
        def token() -> int:
            return self._claims.reserve(1)

        if self._throttle.settings.waiting == "broker":
            return BrokerWaitPolicy(self._throttle, self._slots, token, delayed)
        return ParkingPolicy(
            self._throttle,
            self._slots,
            token,
            self._origin,
            parked=lambda wait: self._asking.ask_in(wait - HORIZON),
        )

    def stop(self, *, for_good: bool) -> None:
        """Give back what was not started. What runs goes on, and keeps its lease."""
        gate = self._gate
        if gate is None:  # it never began
            return
        self._running = False
        self._asking.stop()
        self._telling.cancel()
        self._pace.stop()
        self._leases.stop(self._c.timer, for_good=for_good)
        self.wake.forget()
        gate.stop()
        self._sender.close()
        self._claiming.finish()
        self._claims.give_back(self._claims.booked(), unless_started=True)
        if for_good:
            self.wake.stop()
            self._claiming.tell()
            self._fleet.stop()

    def end(self) -> None:
        """No task runs any more. What is not acknowledged by now was not begun, or was cut off."""
        for request in self._slots.requests():
            self._slots.end(request)
        self._claims.give_back(self._claims.held())
        self._outcomes.tell()
        self.timers.close()

    def stats(self) -> dict[str, Any]:
        """What this worker holds and does."""
        return {
            **self._outage.stats(),
            "workers": self._fleet.size.known or 1,
            "claims": len(self._claims),
            "aside": self._fleet.aside,
            **(self._gate.stats() if self._gate else {}),
        }

    def _register(self) -> None:
        """Once; later, a limit that is missing is registered when it is used."""
        if not self._registered:
            with suppress(StoreError):  # it is done when the server is back, or by the gate
                self._throttle.register()
                self._registered = True

    def _on_back(self) -> None:
        """The server is back. Comes from a thread of its own."""
        self.timers.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._outage.end()
        self._register()
        # A server that has been replaced by its replica may not know what it was told last.
        self._claims.tell_again()
        self._slots.tell_again()
        self._claiming.renew_slots()
        if self._running:
            self._gate.leave_outage()
            self._asking.ask_in(0)

    def _bring_again(self, request: Any) -> None:
        # Celery drops what is reserved when it loses the broker, which delivers it once more.
        if request not in state.reserved_requests:
            self._gate.end(request)
            return
        try:
            self._c.on_task_request(request)
        except Exception as error:  # noqa: BLE001  # of a result backend that is told of a revoked one
            self._gate.retry_later(request, error)
