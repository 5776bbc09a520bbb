"""Tasks that have a limit and Celery's own ``rate_limit`` beside it."""

from __future__ import annotations

import os
import time
from functools import cache

import redis
from celery import Celery

from celery_throttle import Throttle

app = Celery("rated", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(task_ignore_result=True, task_default_queue="rated")
throttle = Throttle(
    app,
    {"one": "1/s", "eight": "8/s"},
    routes={"*.routed": "eight"},
    url=os.environ.get("THROTTLE_URL"),
)


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["THROTTLE_URL"])


def begin() -> None:
    _store().rpush("rated-starts", time.time())


@app.task(throttle="one", rate_limit="4/s")
def below() -> None:
    begin()


@app.task(throttle="one")
def told_later() -> None:
    begin()


@app.task(throttle="eight", rate_limit="5/s")
def above() -> None:
    begin()


@app.task(rate_limit="5/s")
def routed() -> None:
    begin()
