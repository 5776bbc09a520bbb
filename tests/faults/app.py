"""Tasks that write down each start, on a server that no fault reaches."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue

from celery_throttle import Throttle
from celery_throttle.signals import throttle_mode_changed
from celery_throttle.worker import tuning

NAME = os.environ.get("FAULTS_QUEUE", "faults")
CONF = json.loads(os.environ.get("FAULTS_CONF", "{}"))
CHANGED = CONF.pop("throttle_limits", {})


def queue(name: str, kind: str) -> Queue:
    """The queue of a test; what kind it is means something to RabbitMQ only."""
    return Queue(name, Exchange(name), name, queue_arguments={"x-queue-type": kind})


#: Whoever is back has so long to renew its lease: a test is to be as slow as it likes.
tuning.RECLAIM_GRACE_SECONDS = float(os.environ.get("FAULTS_GRACE") or tuning.RECLAIM_GRACE_SECONDS)

app = Celery("faults", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_queues=[queue(NAME, os.environ.get("FAULTS_QUEUE_TYPE", "classic"))],
    task_default_queue=NAME,
    broker_connection_retry_on_startup=True,
    **CONF,
)
LIMITS = {
    "api": "100/s",
    "open": "20/s outage open",
    "closed": "20/s outage closed",
    "slots": "4 at once",
    "mail": "5/s burst 2",
}
throttle = Throttle(app, LIMITS | CHANGED, url=os.environ.get("THROTTLE_URL"))
_records: Any = None

#: By the clock of the server where rows are kept: that of a worker may have been moved.
RECORD = """
local time, row = redis.call('TIME'), cjson.decode(ARGV[1])
row.at = time[1] + time[2] / 1000000
redis.call('RPUSH', KEYS[1], cjson.encode(row))
"""


def record(name: str, **what: Any) -> None:
    """Add a row to a list; the connection belongs to the process."""
    global _records  # noqa: PLW0603  # made after the fork, once a process
    if _records is None:
        _records = redis.Redis.from_url(os.environ["RECORDS_URL"], socket_timeout=120)
    _records.eval(RECORD, 1, f"faults:{name}", json.dumps(what))


def start(task: Any, number: int) -> None:
    about = {"worker": task.request.hostname, "clock": time.time()}
    headers = sorted(task.request.headers or ())  # those that are not Celery's
    record("starts", number=number, task=task.name, headers=headers, **about)


@app.task(bind=True, throttle="api")
def early(self: Any, number: int, seconds: float = 0) -> None:
    start(self, number)
    time.sleep(seconds)


@app.task(bind=True, throttle="api", acks_late=True)
def late(self: Any, number: int) -> None:
    start(self, number)


@app.task(bind=True, throttle="open")
def opened(self: Any, number: int) -> None:
    start(self, number)


@app.task(bind=True, throttle="closed")
def closed(self: Any, number: int) -> None:
    start(self, number)


@app.task(bind=True, throttle="slots")
def slotted(self: Any, number: int, seconds: float = 0.1) -> None:
    start(self, number)
    time.sleep(seconds)
    record("ends", number=number)


@app.task(bind=True, throttle="slots")
def held(self: Any, number: int) -> None:
    """Run until the test lets one go."""
    start(self, number)
    _records.blpop("faults:let-go", 60)
    record("ends", number=number)


@app.task(bind=True, throttle="api", acks_late=True)
def late_held(self: Any, number: int) -> None:
    """Run until the test lets one go."""
    start(self, number)
    _records.blpop("faults:let-go", 60)
    record("ends", number=number)


@app.task(bind=True, throttle="mail:{tenant}", acks_late=True)
def mailed(self: Any, number: int, tenant: str) -> None:  # noqa: ARG001  # its key
    start(self, number)


@app.task(bind=True, throttle="api", acks_late=True, max_retries=1)
def failing(self: Any, number: int) -> None:
    """Fail, and fail again when it is retried."""
    if self.request.retries == 0:
        start(self, number)
    else:
        record("retried", number=number)
    raise self.retry(exc=ValueError("of the soak"), countdown=0.5)


@app.task(bind=True)
def inside(self: Any, number: int) -> None:
    """Meet a limit in the body, once the test lets it go. The message is acknowledged by then."""
    start(self, number)
    _records.blpop("faults:let-go", 60)
    throttle["api"].acquire(max_wait=0)
    record("ends", number=number)


@app.task(bind=True)
def plain(self: Any, number: int) -> None:
    start(self, number)


@app.task(bind=True, rate_limit="1/m")
def slow(self: Any, number: int) -> None:
    """Celery lets these wait in the worker, where they keep their prefetch slots."""
    start(self, number)


@throttle_mode_changed.connect
def tell_mode(mode: str, count: int, prefix: str, **_: Any) -> None:
    record("modes", mode=mode, count=count, prefix=prefix)
