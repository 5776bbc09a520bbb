"""Tasks that write down each start, for tests that kill their workers."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.worker.request import ThrottledRequest

app = Celery("crash", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue=os.environ.get("QUEUE", "crash"),
    broker_transport_options={"visibility_timeout": 3},
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"api": "250/s"}, url=os.environ.get("THROTTLE_URL"), lease=3)
_client: Any = None


def note(name: str, number: int, hostname: str) -> None:
    """Write down a task with its worker and the time; the connection belongs to this process."""
    global _client  # noqa: PLW0603  # made after the fork, once a process
    if _client is None:
        _client = redis.Redis.from_url(os.environ["THROTTLE_URL"])
    _client.rpush(name, f"{number} {hostname} {time.time()}")


class NotedRequest(ThrottledRequest):
    """Also writes down that a process has the task, before the task is acknowledged."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> None:
        note("accepted", self.args[0], self.hostname)
        super().on_accepted(pid, time_accepted)


@app.task(bind=True, throttle="api", Request=NotedRequest)
def early(self: Any, number: int) -> None:
    note("starts", number, self.request.hostname)


@app.task(bind=True, throttle="api", acks_late=True)
def late(self: Any, number: int) -> None:
    note("starts", number, self.request.hostname)
