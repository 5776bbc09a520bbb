"""What the shards of a worker share as long as one connection to the broker lasts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery_throttle.tasks.messages.routing import Routing
from celery_throttle.worker.admission.functions import FunctionCalls
from celery_throttle.worker.admission.gate import Gate
from celery_throttle.worker.claim import Claims
from celery_throttle.worker.claims.poller import Scheduler
from celery_throttle.worker.hooks.pool import make_pool
from celery_throttle.worker.hooks.timers import Timers
from celery_throttle.worker.waiting.delayed import Republisher
from celery_throttle.worker.waiting.prefetch import make_prefetch
from celery_throttle.worker.waiting.stepped_out import SteppedOutRequests


class BrokerConnection:
    """The parts that all shards of a worker share over one connection to the broker.

    Args:
        consumer: Celery's consumer.
        timers: the timers of the worker.
        functions: calls the functions of limits and costs.
        claims: the claims of each shard.
        gate_for: returns the gate that decides about a request.
    """

    def __init__(
        self,
        consumer: Any,
        timers: Timers,
        functions: FunctionCalls,
        claims: Sequence[Claims],
        gate_for: Callable[[Any], Gate],
    ) -> None:
        self.consumer = consumer
        self.timers = timers
        self.functions = functions
        self.gate_for = gate_for
        self.routing = Routing(consumer)
        self.prefetch = make_prefetch(consumer)
        self.republisher = Republisher(consumer, self.routing)
        self.pool = make_pool(consumer, timers, self.readmit)
        self.scheduler = Scheduler(consumer, timers, self.pool, claims)
        #: Without an event loop, requests come to the gates in several threads or greenlets.
        self.deciding = threading.RLock()
        self.stepped_out = SteppedOutRequests()
        #: The servers of late calls of all shards; see `health/loop_calls.py`.
        self.late_servers: dict[Any, str | None] = {}

    def readmit(self, request: Any) -> None:
        """Bring a request to the gate once more."""
        # Celery drops reserved requests when it loses the broker, which delivers them again.
        if self.stepped_out.is_dropped(request):
            self.gate_for(request).end(request)
            return
        try:
            self.consumer.on_task_request(request)
        except Exception as error:  # noqa: BLE001  # of a result backend, as for a revoked task
            self.gate_for(request).recovery.delay(request, error)
