"""A bulk job: tasks that end in each way there is, and a publisher that can be killed.

``python -m tests.apps.bulk NAME COUNT`` sends so many tasks as a fan-out of that name.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from celery_throttle import Throttle

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app: Any = Celery("bulk", broker=URL, backend=URL, set_as_current=False)
throttle = Throttle(app, {"api": "50/s", "rare": "1/h"}, publish="line")


@app.task(name="bulk.call", throttle="api", bind=True, max_retries=1, shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def call(self: Task, number: int, what: str = "") -> int:
    note(f"{number} {self.request.retries}")
    if what == "fail":
        raise ValueError(number)
    if what == "retry" and not self.request.retries:
        raise self.retry(countdown=0.01)
    if what == "ignore":
        raise Ignore
    if what == "reject":
        raise Reject("no", requeue=False)
    return number


@app.task(name="bulk.rare", throttle="rare", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def rare(number: int) -> None: ...


@app.task(name="bulk.plain", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def plain() -> None: ...


def note(text: str) -> None:
    """A run has begun."""
    with redis.Redis.from_url(URL) as client:
        client.rpush("bulk", f"{text} {time.time()}")


if __name__ == "__main__":
    name, count = sys.argv[1], int(sys.argv[2])
    throttle.fan_out((rare.s(number) for number in range(count)), name)
