"""Code as it is before and after a deploy: what ``VERSION`` says."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle

VERSION = os.environ.get("VERSION", "old")
LIMITS = {
    "old": {"api": "20/s", "shared": "1/h"},
    "new": {"api": "20/s", "shared": "100/s", "added": "50/s"},
}

app = Celery("versions", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(task_ignore_result=True, task_default_queue="versions")
throttle = Throttle(app, LIMITS[VERSION], lease=2)


def run(task: Any, number: int) -> None:
    with redis.Redis.from_url(str(app.conf.broker_url)) as client:
        client.rpush("versions:runs", f"{task.name} {number} {VERSION}")


@app.task(bind=True, name="kept", throttle="api", shared=False)
def kept(self: Any, number: int) -> None:
    run(self, number)


@app.task(bind=True, name="changed", throttle="shared", shared=False)
def changed(self: Any, number: int) -> None:
    run(self, number)


if VERSION == "new":

    @app.task(bind=True, name="fresh", throttle="api", shared=False)
    def fresh(self: Any, number: int) -> None:
        run(self, number)

    @app.task(bind=True, name="extra", throttle="added", shared=False)
    def extra(self: Any, number: int) -> None:
        run(self, number)
