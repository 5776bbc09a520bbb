"""Tasks that write down each start, for tests that kill their workers."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

app = Celery("crash", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ.get("QUEUE", "crash"),
    broker_transport_options={"visibility_timeout": 3},
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"api": "250/s"}, url=os.environ.get("THROTTLE_URL"), lease=3)
_starts: Any = None


def note(line: str) -> None:
    """Write a line down; the connection belongs to the pool's process."""
    global _starts  # noqa: PLW0603  # made after the fork, once a process
    if _starts is None:
        _starts = redis.Redis.from_url(os.environ["THROTTLE_URL"])
    _starts.rpush("starts", line)


@app.task(bind=True, throttle="api")
def early(self: Any, number: int) -> None:
    note(f"{number} {self.request.hostname} {time.time()}")


@app.task(bind=True, throttle="api", acks_late=True)
def late(self: Any, number: int) -> None:
    note(f"{number} {self.request.hostname} {time.time()}")
