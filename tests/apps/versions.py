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
    # A deploy that takes the limits away: of a task, or all of them.
    "bare": {"api": "20/s", "shared": "1/h"},
    "none": {},
}

app = Celery("versions", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(task_ignore_result=True, task_default_queue="versions")
app.conf.throttle_url = os.environ.get("THROTTLE_URL")
app.conf.broker_connection_retry_on_startup = True
throttle = Throttle(app, LIMITS[VERSION], lease=2)
API = "api" if VERSION in ("old", "new") else None


def run(task: Any, number: int) -> None:
    with redis.Redis.from_url(str(app.conf.broker_url)) as client:
        client.rpush("versions:runs", f"{task.name} {number} {VERSION}")


@app.task(bind=True, name="kept", throttle=API, shared=False)
def kept(self: Any, number: int) -> None:
    run(self, number)


if "shared" in LIMITS[VERSION]:

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
