"""The pattern of courtlistener: a counter that expires, a schedule beyond it, and a retry."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery, Task

from benchmarks.apps.tasks import SETTINGS, define
from examples.instead_of.courtlistener.before import seconds_to_wait

MOST, SECONDS = int(SETTINGS["api"].removesuffix("/s")), 1
app = Celery("courtlistener", broker=SETTINGS["broker"])
client: Any = redis.Redis.from_url(SETTINGS["store"])


class CountFirst(Task):
    """Counts before it starts, and retries later if there were too many."""

    abstract = True
    max_retries = None

    def before_start(self, *_: Any) -> None:
        """Count, and retry later."""
        delay = seconds_to_wait(client, self.name, MOST, SECONDS)
        if delay > 0:
            raise self.retry(countdown=delay)


define(app, limited={"base": CountFirst}, keyed={})
