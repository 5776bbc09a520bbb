"""What people use today: ask the limit in ``before_start``, and retry when it says no.

The limit is celery_throttle's own, so the two ways differ in nothing but what a refused task does.
"""

from __future__ import annotations

from typing import Any

from celery import Celery, Task

from benchmarks.apps.tasks import SETTINGS, define
from celery_throttle import Limiter

app = Celery("recipe", broker=SETTINGS["broker"])
limiter = Limiter(
    SETTINGS["store"],
    {"api": SETTINGS["api"], "tenant": SETTINGS["tenant"]},
    prefix=SETTINGS["prefix"],
)


class AskFirst(Task):
    """Asks ``api``, or ``tenant`` for the task's key."""

    abstract = True
    max_retries = None

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Ask, and come back later when the limit says no."""
        limit = limiter["tenant", args[0]] if args else limiter["api"]
        decision = limit.acquire()
        if not decision:
            raise self.retry(countdown=decision.retry_after)


define(app, limited={"base": AskFirst}, keyed={"base": AskFirst})
