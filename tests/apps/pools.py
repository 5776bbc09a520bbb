"""Tasks that write down when they begin, in any pool."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache

import redis
from celery import Celery

from celery_throttle import Throttle

app = Celery("pools", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="pools",
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("BROKER_OPTIONS", "{}")),
)
LIMITS = {"paced": "50/s", "bursty": "10/s burst 12", "one": "1 at once", "keyed": "2/s"}
throttle = Throttle(app, LIMITS, url=os.environ.get("THROTTLE_URL"))


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["THROTTLE_URL"])


def begin(number: int, seconds: float) -> None:
    _store().rpush("pools-starts", f"{number} {time.time()}")
    time.sleep(seconds)


@app.task
def plain(number: int, seconds: float) -> None:
    begin(number, seconds)


@app.task
def stay(number: int, seconds: float) -> None:
    """Run until the test says that all may end."""
    begin(number, seconds)
    while not _store().exists("pools-end"):
        time.sleep(0.02)


@app.task(throttle="paced")
def stay_paced(number: int, seconds: float) -> None:
    stay(number, seconds)


@app.task(throttle="paced")
def paced(number: int, seconds: float) -> None:
    begin(number, seconds)


@app.task(throttle="bursty")
def bursty(number: int, seconds: float) -> None:
    begin(number, seconds)


@app.task(throttle="keyed:{key}")
def keyed(number: int, seconds: float, key: int) -> None:  # noqa: ARG001  # it is the limit's
    begin(number, seconds)


@app.task(throttle="one")
def one(number: int, seconds: float) -> None:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    _store().sadd("pools-depths", depth)
    begin(number, seconds)
