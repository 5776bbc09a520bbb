"""Hands tasks that came out of lines to Celery, as if the broker had just delivered them.

Laws at stake here: *never lost* (what is not started goes back to the head of its line) and *no
surprise* (Celery's own strategy makes the request, and answers for messages that it refuses).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_throttle.messages import packing
from celery_throttle.worker.admission.gate import gate_of
from celery_throttle.worker.admission.quota_cache import HORIZON
from celery_throttle.worker.fan_out_outcomes import FAILED
from celery_throttle.worker.request import is_gated

if TYPE_CHECKING:
    from celery_throttle.app import Throttle
    from celery_throttle.worker.claims.claims import Claim, Claims, Taken
    from celery_throttle.worker.claims.quarantine import Aside
    from celery_throttle.worker.pool import Processes
    from celery_throttle.worker.timers import Timers

logger = get_logger(__name__)


class HandOver:
    """Of one worker, over one connection to the broker.

    Args:
        consumer: Celery's.
        throttle: the app's limits.
        claims: what this worker holds.
        aside: where tasks go that this worker has no code for.
        processes: those of the pool.
        timers: of the worker.
    """

    def __init__(
        self,
        consumer: Any,
        throttle: Throttle,
        claims: Claims,
        aside: Aside,
        processes: Processes,
        *,
        timers: Timers,
    ) -> None:
        self._c = consumer
        self._timers = timers
        self._throttle = throttle
        self._claims = claims
        self._aside = aside
        self._processes = processes

    def take(self, task: Taken) -> None:
        """Start it when its slot has come."""
        self._safely(task.claim, self._take, task)

    def _safely(self, claim: Claim, step: Callable[..., None], *args: Any) -> None:
        """A task that cannot be handed over comes again later, and does not hold up the others."""
        try:
            step(*args)
        except Exception:  # of a result backend, say, that is told of a revoked task
            logger.exception("A task from a line could not be handed over")
            if not claim.started:
                self._aside.put_off(claim)

    def _take(self, task: Taken) -> None:
        if task.claim.returned:  # the worker was told to stop meanwhile
            return
        try:
            message = packing.unpack(task.packed, self._c.task_consumer.accept, task.claim)
            name = task_name(message)
        except packing.UnreadableMessageError:
            self._aside.put(task.claim, task.packed, None)
            return
        except (ContentDisallowed, DecodeError) as error:
            self._c.on_decode_error(message, error)
            self._refused(message)
            return
        except (KeyError, TypeError):
            self._c.on_unknown_message(None, message)
            self._refused(message)
            return
        if name not in self._c.strategies:
            self._aside.put(task.claim, task.packed, name)
            return
        slot = time.monotonic() + task.starts
        if task.starts > 0:
            args = (task.claim, self._start, message, slot)
            self._timers.call_after(task.starts, self._safely, args)
        else:
            self._start(message, slot)

    def _start(self, message: packing.ClaimedMessage, slot: float) -> None:
        """Its slot has come. Without a free process it waits 20 ms for one, then goes back."""
        if self._processes.free() > 0:
            self._hand_over(message, slot)
        else:
            self._processes.when_free(
                lambda: self._safely(message.claim, self._hand_over, message, slot)
            )
            self._timers.call_after(HORIZON, self._give_up, (message,))

    def _give_up(self, message: packing.ClaimedMessage) -> None:
        self._claims.give_back([message.claim], unless_started=True)

    def _hand_over(self, message: packing.ClaimedMessage, slot: float) -> None:
        c = self._c
        if message.claim.returned:
            return
        if time.monotonic() > slot + HORIZON:  # a task may have kept the loop
            self._give_up(message)
            return
        task = c.app.tasks[task_name(message)]
        payload = None if "task" in message.headers else message.payload
        message.claim.delivered = True
        try:
            c.strategies[task.name](
                message,
                payload,
                message.ack_log_error,
                message.reject_log_error,
                c.on_task_message,
            )
        except (InvalidTaskError, ContentDisallowed) as error:
            c.on_invalid_task(payload, message, error)
            self._refused(message)
        except DecodeError as error:
            c.on_decode_error(message, error)
            self._refused(message)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # Of another shape than any message has. From the broker, it would end the worker.
            if message.claim.started:
                raise
            c.on_invalid_task(payload, message, error)
            self._refused(message)
        if not is_gated(task):
            # It was defined after the worker had started, so no gate will see it start.
            message.claim.start()

    def _refused(self, message: packing.ClaimedMessage) -> None:
        """It will never run, here or elsewhere."""
        gate = gate_of(self._c.app)
        if gate is not None:
            gate.outcomes.note(message.headers, FAILED)


def task_name(message: packing.ClaimedMessage) -> str:
    """The task's name, of either version of Celery's protocol.

    Raises:
        KeyError: there is none.
    """
    about = message.headers if "task" in message.headers else message.payload
    return str(about["task"])
