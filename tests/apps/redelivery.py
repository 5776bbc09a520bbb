"""Tasks that write down each run, and whether their message was redelivered."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Reject
from celery.signals import task_postrun

from celery_throttle import Throttle

QUEUE = "redelivery"
RUNS = "redelivery:runs"

app = Celery("redelivery", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(
    result_backend=os.environ.get("CELERY_BROKER_URL"),
    task_default_queue=QUEUE,
    task_acks_late=True,
    worker_deduplicate_successful_tasks=True,
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(app, {"api": "100/s"}, lease=3)


def run(task: Any) -> bool:
    """Write a run down; gives whether the message was redelivered."""
    redelivered = bool(task.request.delivery_info["redelivered"])
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        client.rpush(RUNS, f"{task.request.id} {redelivered}")
    return redelivered


def kill_worker() -> None:
    """Kill the worker in whose process, or in a process of whose pool, this runs."""
    forked = os.environ["POOL"] == "prefork"
    os.kill(os.getppid() if forked else os.getpid(), signal.SIGKILL)


@app.task(bind=True, shared=False)
def plain(self: Any) -> None:
    if not run(self):
        raise Reject("until it is redelivered", requeue=True)


@app.task(bind=True, shared=False, throttle="api")
def rejects(self: Any) -> None:
    if not run(self):
        raise Reject("until it is redelivered", requeue=True)


@app.task(bind=True, shared=False, throttle="api")
def dies(self: Any) -> None:
    if not run(self):
        kill_worker()
        time.sleep(60)  # the pool's process outlives its worker for a moment


@app.task(bind=True, shared=False, throttle="api")
def succeeds(self: Any) -> None:
    run(self)


@task_postrun.connect
def die_with_result(sender: Any, task: Any, **_: Any) -> None:
    """The result is stored, and the message not acknowledged yet."""
    if sender.name == succeeds.name and not task.request.delivery_info["redelivered"]:
        kill_worker()
        time.sleep(60)
