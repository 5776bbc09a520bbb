"""A bulk job: tasks that end in each way there is, and a publisher that can be killed.

``python -m tests.apps.bulk NAME COUNT LAST`` sends so many tasks as a fan-out of that name; if LAST
is given, it makes none after that number, and does not end. With ``--priorities`` it sends ten,
those of high priority last; with ``--bar COUNT`` it shows bars, and cancels them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from celery_throttle import Throttle

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")
URL = os.environ.get("THROTTLE_URL", BROKER)

app: Any = Celery("bulk", broker=BROKER, backend=URL, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
throttle = Throttle(
    app,
    {"api": "50/s", "rare": "1/h", "wide": "1000000/s burst 1000000"},
    url=os.environ.get("THROTTLE_URL"),
    publish="line",
)


@app.task(name="bulk.call", throttle="api", bind=True, max_retries=1, shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def call(self: Task, number: int, what: str = "") -> int:
    note(f"{number} {self.request.retries}")
    if what == "fail":
        raise ValueError(number)
    if what == "retry" and not self.request.retries:
        raise self.retry(countdown=0.01)
    if what == "ignore":
        raise Ignore
    if what in ("reject", "requeue"):
        raise Reject("no", requeue=what == "requeue")
    return number


@app.task(
    name="bulk.long",
    throttle="api",
    acks_late=True,
    acks_on_failure_or_timeout=False,
    shared=False,
    lazy=False,
)  # type: ignore[untyped-decorator]  # an app of any kind
def long(number: int, seconds: float) -> int:
    """Takes long, when it runs for the first time."""
    with redis.Redis.from_url(URL) as client:
        again = client.llen("bulk")
    note(f"{number} 0")
    time.sleep(0 if again else seconds)
    return number


@app.task(name="bulk.rare", throttle="rare", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def rare(number: int) -> None: ...


@app.task(name="bulk.wide", throttle="wide", ignore_result=True, shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def wide(number: int) -> None: ...


@app.task(name="bulk.plain", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def plain() -> None: ...


def note(text: str) -> None:
    """A run has begun."""
    with redis.Redis.from_url(URL) as client:
        client.rpush("bulk", f"{text} {time.time()}")


def signatures(count: int, last: int | None) -> Iterator[Any]:
    for number in range(count):
        yield rare.s(number)
        if number == last:
            time.sleep(3600)


def main(name: str, count: int = 0, last: int | None = None) -> None:
    """Send them."""
    if name == "--bar":
        job = throttle.fan_out([rare.s(n) for n in range(count)], "nightly[/2026]")
        threading.Timer(1.0, job.cancel).start()
        job.watch()
    elif name == "--priorities":
        throttle.fan_out([call.s(n).set(priority=9 - n) for n in range(9, -1, -1)])
    else:
        throttle.fan_out(signatures(count, last), name)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
