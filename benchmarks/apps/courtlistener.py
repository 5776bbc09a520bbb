"""The pattern of courtlistener: a counter that expires, a schedule beyond it, and a retry.

In our words; see also ``examples/instead_of``.
"""

from __future__ import annotations

import time
from typing import Any

import redis
from celery import Celery, Task

from benchmarks.apps.tasks import SETTINGS, define

MOST, SECONDS = int(SETTINGS["api"].removesuffix("/s")), 1
app = Celery("courtlistener", broker=SETTINGS["broker"])
client: Any = redis.Redis.from_url(SETTINGS["store"])


def seconds_to_wait() -> float:
    """Count a start; return 0.0 if it is allowed, else the seconds until it may be tried again."""
    started = client.get("counter")
    if started is None:
        client.set("counter", 1, ex=SECONDS)
        return 0.0
    if int(started) < MOST:
        if client.incr("counter") == 1:  # it has expired since
            client.expire("counter", SECONDS)
        return 0.0
    now, planned = time.time(), float(client.get("schedule") or 0)
    if planned < now:
        left = max(0.0, client.ttl("counter"))
        client.set("schedule", now + left)
        return float(left)
    planned += SECONDS / MOST
    client.set("schedule", planned)
    return planned - now


class CountFirst(Task):
    """Counts before it starts, and retries later if there were too many."""

    abstract = True
    max_retries = None

    def before_start(self, *_: Any) -> None:
        """Count, and retry later."""
        delay = seconds_to_wait()
        if delay > 0:
            raise self.retry(countdown=delay)


define(app, limited={"base": CountFirst}, keyed={})
