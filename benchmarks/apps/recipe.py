"""What people use today: acquire in ``before_start``, and retry if the limit refuses.

The limit is one of celery_throttle, so the two ways differ only in what a refused task does.
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


class AcquireFirst(Task):
    """Acquires from ``api``, or from ``tenant`` for the key of the task."""

    abstract = True
    max_retries = None

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Acquire, and retry later if the limit refuses."""
        limit = limiter["tenant", args[0]] if args else limiter["api"]
        decision = limit.try_acquire()
        if not decision:
            raise self.retry(countdown=decision.retry_after)


define(app, limited={"base": AcquireFirst}, keyed={"base": AcquireFirst})
