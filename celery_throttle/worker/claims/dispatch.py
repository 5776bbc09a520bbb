"""Gives claimed tasks to Celery, as if the broker had just delivered them.

Laws at stake here: *never lost* (a task that is not started goes back to the head of its line) and
*no surprise* (Celery's own strategy makes the request, and deals with messages that it refuses).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_throttle.operations.fan_outs import FAILED
from celery_throttle.tasks.messages import packing
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import Claim, ClaimedTask, Claims
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.health.loop_calls import LoopCalls
from celery_throttle.worker.hooks.pool import WorkerPool
from celery_throttle.worker.hooks.timers import Timers

logger = get_logger(__name__)


@dataclass(eq=False, repr=False)
class Dispatcher:
    """Dispatches the claimed tasks of one worker over one connection to the broker."""

    consumer: Any
    claims: Claims
    quarantine: Quarantine
    pool: WorkerPool
    timers: Timers
    outcomes: FanOutOutcomes
    calls: LoopCalls

    def dispatch(self, task: ClaimedTask) -> None:
        """Give a task to Celery when its start has come."""
        self._run_step(task.claim, self._read, task)

    def _run_step(self, claim: Claim, step: Callable[..., None], *args: Any) -> None:
        """Run a step; after an error the task comes again later, and the others go on."""
        try:
            step(*args)
        except Exception:  # of a result backend, say, in which a revoked task is stored
            logger.exception("A task from a line could not be handed over")
            if not claim.is_started:
                self.calls.call(partial(self.quarantine.put_until_heartbeat, claim))

    def _read(self, task: ClaimedTask) -> None:
        claim, consumer = task.claim, self.consumer
        try:
            message = packing.unpack(task.packed, consumer.task_consumer.accept, claim)
            name = str(packing.task_fields(message)["task"])
        except packing.UnreadableMessageError:
            self.calls.call(partial(self.quarantine.put_unreadable, task))
        except (ContentDisallowed, DecodeError) as error:
            self._refuse(message, partial(consumer.on_decode_error, message, error))
        except (KeyError, TypeError):
            self._refuse(message, partial(consumer.on_unknown_message, None, message))
        else:
            if name not in consumer.strategies:
                label = f"{packing.version_of(task.packed)} {name}"
                self.calls.call(partial(self.quarantine.put, claim, label))
                return
            starts_at = time.monotonic() + task.starts_in
            deliver = partial(self._run_step, claim, self._deliver, claim, message, name, starts_at)
            if task.starts_in > 0:
                args = (claim, self._start, claim, deliver)
                self.timers.call_after(task.starts_in, self._run_step, args)
            else:
                self._start(claim, deliver)

    def _start(self, claim: Claim, deliver: Callable[[], None]) -> None:
        """Deliver a task that may start; requeue it if no process is free within 20 ms."""
        if claim.is_returned:  # the worker stops, or has another connection to the broker
            return
        if self.pool.count_free() > 0:
            deliver()
        else:
            self.pool.call_when_free(deliver)
            self.timers.call_after(tuning.BOOKING_HORIZON_SECONDS, self._requeue, (claim,))

    def _requeue(self, claim: Claim) -> None:
        self.claims.requeue([claim], unless_started=True)

    def _deliver(
        self, claim: Claim, message: packing.ClaimedMessage, name: str, starts_at: float
    ) -> None:
        consumer = self.consumer
        if time.monotonic() > starts_at + tuning.BOOKING_HORIZON_SECONDS:
            self._requeue(claim)  # a task has kept the loop busy
            return
        if not self.claims.deliver(claim):
            return
        payload = None if "task" in message.headers else message.payload
        try:
            # The request of a message that was received before raises ReceivedBeforeError, by which
            # `hooks/strategies.py` knows that the request goes on without being announced again.
            consumer.strategies[name](
                message,
                payload,
                message.ack_log_error,
                message.reject_log_error,
                consumer.on_task_message,
            )
        except DecodeError as error:
            self._refuse(message, partial(consumer.on_decode_error, message, error))
        except (
            InvalidTaskError,
            ContentDisallowed,
            # Malformed in a way that would end the worker if the message came from the broker.
            *(AttributeError, LookupError, TypeError, ValueError),
        ) as error:
            if claim.is_started:
                raise
            self._refuse(message, partial(consumer.on_invalid_task, payload, message, error))

    def _refuse(self, message: packing.ClaimedMessage, refuse: Callable[[], None]) -> None:
        """Refuse a message as Celery does. Its task has failed: no worker will ever run it."""
        refuse()
        self.outcomes.record(message.headers, FAILED)
