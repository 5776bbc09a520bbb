"""Tasks that wait for a rate and for a slot; the limits are kept on any kind of server.

What happens is noted on a plain server of its own, in the list ``stores-notes``.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle, task_throttled

LIMITS = {"turn": "200/s burst 5", "pair": "2 at once"}

app = Celery("stores", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="stores",
    broker_transport_options=json.loads(os.environ.get("TRANSPORT_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    throttle_timeout=float(os.environ.get("THROTTLE_TIMEOUT", "1")),
)
throttle = Throttle(app, LIMITS, url=os.environ.get("THROTTLE_URL"))


@cache
def notes() -> redis.Redis:
    """Made after the fork, once a process."""
    return redis.Redis.from_url(os.environ["NOTES_URL"])


@task_throttled.connect
def on_throttled(request: Any, **_: Any) -> None:
    notes().rpush("stores-notes", f"waits {request.args[0]}")


@app.task(throttle=["turn", "pair"], shared=False)
def turn(number: int) -> None:
    notes().rpush("stores-notes", f"runs {number}")
