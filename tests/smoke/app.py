"""What the worker containers run: the only file of their volume."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

STORE = os.environ["CELERY_RESULT_BACKEND"]
records = redis.Redis.from_url(STORE)

app = Celery("smoke")  # reads CELERY_BROKER_URL and CELERY_RESULT_BACKEND
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
Throttle(app, {"api": os.environ["SMOKE_LIMIT"]}, url=STORE, lease=5)


@app.task(bind=True, name="work", throttle="api", acks_late=True)
def work(self: Any, number: int, seconds: float = 0) -> None:
    """Records its start and its end in streams, whose ids are times of the server."""
    about: dict[Any, Any] = {"number": number, "worker": self.request.hostname}
    records.xadd("starts", about)
    time.sleep(seconds)
    records.xadd("ends", about)
