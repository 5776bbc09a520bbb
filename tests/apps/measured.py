"""Tasks whose runs are counted in the hash ``runs``, beside the counters of their limits."""

from __future__ import annotations

import os
import time
from functools import cache

import redis
from celery import Celery

from celery_throttle import Throttle

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app = Celery("measured", broker=BROKER, set_as_current=False)
app.conf.update(task_ignore_result=True, task_default_queue="measured")
throttle = Throttle(
    app, {"api": "50/s burst 5", "tenant": "20/s burst 4", "pair": "2 at once"}, lease=30
)


@cache
def counts() -> redis.Redis:
    """Made after the fork, once a process."""
    return redis.Redis.from_url(BROKER)


@app.task(throttle="api", shared=False)
def call() -> None:
    counts().hincrby("runs", "api", 1)


@app.task(throttle=["api", "tenant:{tenant}"], throttle_cost=2, shared=False)
def remind(tenant: str) -> None:
    counts().hincrby("runs", f"tenant {tenant}", 1)


@app.task(throttle="pair", shared=False)
def hold(seconds: float) -> None:
    counts().hincrby("runs", "pair", 1)
    time.sleep(seconds)
