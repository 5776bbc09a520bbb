"""Fan-outs and lines in shards: a process that sends to them, and a worker.

``SHARDS`` is the setting as JSON, ``HOME_URL`` the server of the home shard. ``python -m
tests.apps.sharded_bulk NAME COUNT LAST`` sends so many tasks of the limit "erp" as a fan-out of
that name; if LAST is given, it makes none after that number, and does not end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

BROKER = os.environ["CELERY_BROKER_URL"]
FAST = "1000/s burst 1000 outage closed"

app: Any = Celery("bulk", broker=BROKER, backend=BROKER, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
app.conf.throttle_shards = json.loads(os.environ["SHARDS"])
throttle = Throttle(
    app,
    {"api": FAST, "erp": FAST, "tenant": FAST},
    url=os.environ["HOME_URL"],
    publish="line",
    lease=2,
)


def record(name: str, number: int) -> int:
    with redis.Redis.from_url(BROKER) as client:
        client.rpush(f"bulk:{name}", number)
    return number


@app.task(name="api", throttle="api", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def api(number: int) -> int:
    return record("api", number)


@app.task(name="erp", throttle="erp", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def erp(number: int) -> int:
    return record("erp", number)


@app.task(name="tenant", throttle="tenant:{key}", shared=False, lazy=False)  # type: ignore[untyped-decorator]  # an app of any kind
def tenant(number: int, key: str) -> int:  # noqa: ARG001  # of its limit
    return record("tenant", number)


def signatures(count: int, last: int | None) -> Iterator[Any]:
    for number in range(count):
        yield erp.s(number)
        if number == last:
            time.sleep(3600)


if __name__ == "__main__":
    throttle.fan_out(
        signatures(int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None), sys.argv[1]
    )
