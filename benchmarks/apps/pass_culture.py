"""The pattern of pass-culture: a counter for each window of the clock, and a retry a window later.

As there, a task fails when it has been retried three times.
"""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery, Task

from benchmarks.apps.tasks import SETTINGS, define
from examples.instead_of.pass_culture.before import LONGEST_DELAY, RateLimitedError, count_start

MOST, SECONDS = int(SETTINGS["api"].removesuffix("/s")), 1
app = Celery("pass_culture", broker=SETTINGS["broker"])
client: Any = redis.Redis.from_url(SETTINGS["store"])


class CountFirst(Task):
    """Counts before it starts, and retries later if there were too many."""

    abstract = True

    def before_start(self, *_: Any) -> None:
        """Count, and retry later."""
        over = count_start(client, self.name, MOST, SECONDS)
        if over > 0:
            delay = SECONDS * (1 + over // MOST)
            raise self.retry(exc=RateLimitedError(), countdown=min(delay, LONGEST_DELAY))


define(app, limited={"base": CountFirst}, keyed={})
