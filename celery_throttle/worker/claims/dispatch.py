"""Gives claimed tasks to Celery, as if the broker had just delivered them.

Laws at stake here: *never lost* (a task that is not started goes back to the head of its line) and
*no surprise* (Celery's own strategy makes the request, and deals with messages that it refuses).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_throttle.operations.fan_outs import FAILED
from celery_throttle.tasks.messages import packing
from celery_throttle.worker import tuning
from celery_throttle.worker.claim import Claim
from celery_throttle.worker.claims.claims import ClaimedTask, Claims
from celery_throttle.worker.claims.outcomes import FanOutOutcomes
from celery_throttle.worker.claims.quarantine import Quarantine
from celery_throttle.worker.hooks.pool import WorkerPool
from celery_throttle.worker.hooks.timers import Timers

logger = get_logger(__name__)


class _Delivery(NamedTuple):
    """A claimed task that can be delivered at a monotonic time."""

    claim: Claim
    message: packing.ClaimedMessage
    starts_at: float


@dataclass(eq=False, repr=False)
class Dispatcher:
    """Dispatches the claimed tasks of one worker over one connection to the broker."""

    consumer: Any
    claims: Claims
    quarantine: Quarantine
    pool: WorkerPool
    timers: Timers
    outcomes: FanOutOutcomes

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
                self.quarantine.put_until_heartbeat(claim)

    def _read(self, task: ClaimedTask) -> None:
        if task.claim.is_returned:  # the worker stops
            return
        consumer = self.consumer
        try:
            message = packing.unpack(task.packed, consumer.task_consumer.accept, task.claim)
            name = read_task_name(message)
        except packing.UnreadableMessageError:
            self.quarantine.put_unreadable(task)
            return
        except (ContentDisallowed, DecodeError) as error:
            consumer.on_decode_error(message, error)
            self._record_failure(message)
            return
        except (KeyError, TypeError):
            consumer.on_unknown_message(None, message)
            self._record_failure(message)
            return
        if name not in consumer.strategies:
            self.quarantine.put(task.claim, f"{packing.version_of(task.packed)} {name}")
            return
        delivery = _Delivery(task.claim, message, time.monotonic() + task.starts_in)
        if task.starts_in > 0:
            args = (task.claim, self._start, delivery)
            self.timers.call_after(task.starts_in, self._run_step, args)
        else:
            self._start(delivery)

    def _start(self, delivery: _Delivery) -> None:
        """Deliver a task that may start; requeue it if no process is free within 20 ms."""
        if self.pool.count_free() > 0:
            self._deliver(delivery)
        else:
            claim = delivery.claim
            self.pool.call_when_free(lambda: self._run_step(claim, self._deliver, delivery))
            self.timers.call_after(tuning.BOOKING_HORIZON_SECONDS, self._requeue, (claim,))

    def _requeue(self, claim: Claim) -> None:
        self.claims.requeue([claim], unless_started=True)

    def _deliver(self, delivery: _Delivery) -> None:
        claim, message, starts_at = delivery
        consumer = self.consumer
        if time.monotonic() > starts_at + tuning.BOOKING_HORIZON_SECONDS:
            self._requeue(claim)  # a task has kept the loop busy
            return
        if not self.claims.deliver(claim):
            return
        task = consumer.app.tasks[read_task_name(message)]
        payload = None if "task" in message.headers else message.payload
        try:
            # The request of a message that was received before raises ReceivedBeforeError, by which
            # `hooks/strategies.py` knows that the request goes on without being announced again.
            consumer.strategies[task.name](
                message,
                payload,
                message.ack_log_error,
                message.reject_log_error,
                consumer.on_task_message,
            )
        except (InvalidTaskError, ContentDisallowed) as error:
            consumer.on_invalid_task(payload, message, error)
            self._record_failure(message)
        except DecodeError as error:
            consumer.on_decode_error(message, error)
            self._record_failure(message)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Malformed in a way that would end the worker if the message came from the broker.
            if claim.is_started:
                raise
            consumer.on_invalid_task(payload, message, error)
            self._record_failure(message)

    def _record_failure(self, message: packing.ClaimedMessage) -> None:
        """Record the failure of a task that no worker will ever run."""
        self.outcomes.record(message.headers, FAILED)


def read_task_name(message: packing.ClaimedMessage) -> str:
    """Return the name of a message's task, in either version of Celery's protocol.

    Raises:
        KeyError: the message has no name of a task.
    """
    return str(packing.task_fields(message)["task"])
