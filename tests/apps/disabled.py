"""Tasks with limits that would stop them for an hour, with limits disabled and no server."""

from __future__ import annotations

import os

from celery import Celery, group

from celery_throttle import Throttle

app = Celery(
    "disabled",
    broker=os.environ.get("CELERY_BROKER_URL", "memory://"),
    backend=os.environ.get("CELERY_BROKER_URL", "cache+memory://"),
)
app.conf.update(broker_connection_retry_on_startup=True, task_store_eager_result=False)
throttle = Throttle(
    app,
    {"api": "1/h", "jobs": "1 at once"},
    url="redis://nowhere.invalid",
    publish="line",
    enabled=False,
)


@app.task(throttle="api")
def call(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


@app.task(throttle=["api", "jobs"], throttle_max_wait=1.0)
def inside(number: int) -> int:
    """Acquires in its body as well, three times."""
    for _ in range(3):
        throttle["api"].acquire(max_wait=0)
    with throttle["jobs"].slot():
        return number


def all_of(count: int) -> group:
    return group([*map(call.s, range(count)), *map(inside.s, range(count))])
