"""The pattern of pass-culture: a counter for each window of the clock, and a retry a window later.

In our words; see also ``examples/instead_of``. As there, a task fails when it has been retried
three times.
"""

from __future__ import annotations

import time
from typing import Any

import redis
from celery import Celery, Task

from benchmarks.apps.tasks import SETTINGS, define

MOST, SECONDS, LONGEST_DELAY = int(SETTINGS["api"].removesuffix("/s")), 1, 1200
app = Celery("pass_culture", broker=SETTINGS["broker"])
client: Any = redis.Redis.from_url(SETTINGS["store"])


class RateLimitedError(Exception):
    """As many tasks as may have started in this window."""


class CountFirst(Task):
    """Counts before it starts, and retries later if there were too many."""

    abstract = True

    def before_start(self, *_: Any) -> None:
        """Count, and retry later."""
        window = f"bucket:{int(time.time()) // SECONDS}"
        over = int(client.incr(window)) - MOST
        client.expire(window, 2 * SECONDS)
        if over > 0:
            delay = SECONDS * (1 + over // MOST)
            raise self.retry(exc=RateLimitedError(), countdown=min(delay, LONGEST_DELAY))


define(app, limited={"base": CountFirst}, keyed={})
