"""Tasks that write down each start, for tests that take waiting tasks away from running workers."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost")
STORE = os.environ.get("THROTTLE_URL", BROKER)
LIMITS = {"api": "100/s", "tenant": "50/s"}

#: Seconds; longer than a busy machine keeps a process from renewing its leases.
LEASE = 8

app = Celery("removal", broker=BROKER, backend=STORE, set_as_current=False)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, LIMITS, url=STORE, lease=LEASE)
_starts: Any = None


@app.task(name="call", bind=True, throttle=["api", "tenant:{tenant}"], shared=False, lazy=False)
def call(self: Any, tenant: int) -> None:  # noqa: ARG001  # its key
    global _starts  # noqa: PLW0603  # made after the fork, once a process
    if _starts is None:
        _starts = redis.Redis.from_url(STORE)
    _starts.rpush("starts", self.request.id)
