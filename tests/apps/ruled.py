"""An app with a rules file, which has the limits of its tasks."""

from __future__ import annotations

import os

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


def _record(name: str) -> None:
    """Record the start of a task: its time by the server's clock."""
    with redis.Redis.from_url(STORE) as client:
        seconds, more = client.time()
        client.rpush(f"ran:{name}", f"{seconds * 1_000_000 + more}")


@app.task(name="named", throttle="api", shared=False)
def named() -> None:
    """Names a limit that only the file defines."""
    _record("named")


@app.task(name="routed", shared=False)
def routed(number: int) -> None:
    """Has the limit of its route, if the file has one."""
    _record("routed")
