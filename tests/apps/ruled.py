"""An app with a rules file, which has the limits of its tasks."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.worker import tuning

STORE = os.environ.get("THROTTLE_URL") or os.environ.get("CELERY_BROKER_URL", "redis://localhost")

#: So that tests of many changes end soon.
tuning.RULES_POLL_SECONDS = float(os.environ.get("RULES_POLL_SECONDS", "0.2"))

app = Celery("ruled", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(
    throttle_url=STORE,
    throttle_rules=os.environ.get("RULES"),
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"code": "1000/s burst 1000"}, lease=1)


def _record(task: Any) -> None:
    with redis.Redis.from_url(STORE) as client:
        client.rpush(f"ran:{task.name}", task.request.hostname)


@app.task(bind=True, name="named", throttle="api", shared=False)
def named(self: Any) -> None:
    """Names a limit that only the file defines."""
    _record(self)


@app.task(bind=True, name="routed", shared=False)
def routed(self: Any, _turn: int) -> None:
    """Has the limit of its route, if the file has one."""
    _record(self)
