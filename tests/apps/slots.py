"""Tasks that hold a slot, and write down when they begin and end."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery import Celery, current_task

from celery_throttle import Throttle
from celery_throttle.worker import tuning

# A task whose call is late comes to its line later: a test of the order needs replies in time,
# however busy the machine is.
tuning.LOOP_CALL_SECONDS = float(os.environ.get("LOOP_CALL_SECONDS", tuning.LOOP_CALL_SECONDS))

app = Celery("slots", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="slots",
    broker_connection_retry_on_startup=True,
)
throttle = Throttle(
    app,
    {"ten": "10 at once", "one": "1 at once", "both": ["1000/s burst 100", "2 at once"]},
    url=os.environ.get("THROTTLE_URL"),
    lease=float(os.environ.get("LEASE", "4")),
)
_client: Any = None


def note(kind: str, number: int) -> None:
    """Write down what happens, when, and in which worker."""
    global _client  # noqa: PLW0603  # made after the fork, once a process
    if _client is None:
        # It belongs to the pool's process.
        url = os.environ.get("NOTES_URL") or os.environ["THROTTLE_URL"]
        _client = redis.Redis.from_url(url)
    hostname = current_task.request.hostname
    _client.rpush("slots-notes", f"{kind} {number} {time.time()} {hostname}")


def hold(number: int, seconds: float | None) -> None:
    """Take some seconds, or None: until the test says that all may end."""
    note("begin", number)
    while seconds is None and not _client.exists("slots-end"):
        time.sleep(0.02)
    time.sleep(seconds or 0)
    note("end", number)


@app.task(throttle="ten")
def ten(number: int, seconds: float | None) -> None:
    hold(number, seconds)


@app.task(throttle="ten", acks_late=True)
def ten_late(number: int, seconds: float | None) -> None:
    hold(number, seconds)


@app.task(throttle="both")
def both(number: int, seconds: float | None) -> None:
    hold(number, seconds)


@app.task(throttle="both", acks_late=True)
def both_late(number: int, seconds: float | None) -> None:
    hold(number, seconds)


@app.task(throttle="one")
def one(number: int, seconds: float | None) -> None:
    hold(number, seconds)


@app.task(bind=True, throttle="one", max_retries=1, time_limit=1)
def ends(self: Any, number: int, how: str) -> None:
    """End in one of the ways in which a task can end."""
    note("begin", number)
    if how == "fail":
        raise ValueError(how)
    if how == "retry" and not self.request.retries:
        raise self.retry(countdown=0)
    if how == "time":
        time.sleep(60)
    if how == "die":
        os._exit(1)
