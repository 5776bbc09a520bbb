"""Shards on servers of their own: what a process with some settings of shards decides in each.

``SHARDS`` is the setting as JSON, ``LIMITS`` the limits. With ``STALL``, a worker stands still for
as many seconds after a call of a gate that has taken units for tasks without a process. With
``LOOK_UP``, a function returns the limits of tenants, by a table that the tests write.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Reject

from celery_throttle import LimitByKey, Throttle
from celery_throttle.limits.requirement import Requirement
from celery_throttle.signals import throttle_mode_changed
from celery_throttle.worker import tuning
from celery_throttle.worker.admission.quota import Quota
from celery_throttle.worker.start import Start

LIMITS = json.loads(os.environ["LIMITS"])

app = Celery("sharded", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
if os.environ.get("RULES"):
    app.conf.throttle_rules = os.environ["RULES"]
    tuning.RULES_POLL_SECONDS = 0.2  # so that the test ends soon
app.conf.throttle_shards = json.loads(os.environ["SHARDS"])


def look_up(tenant: str) -> str | None:
    """Return the limit of a tenant; None if the table has none."""
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"], decode_responses=True) as client:
        limit: str | None = client.hget("sharded:table", tenant)
    return limit


if os.environ.get("LOOK_UP"):
    LIMITS["tenant"] = LimitByKey(LIMITS["tenant"], look_up, refresh=1)
throttle = Throttle(
    app,
    LIMITS,
    url=os.environ["HOME_URL"],
    lease=float(os.environ.get("LEASE", "30")),
    timeout=float(os.environ.get("TIMEOUT", "1")),
)

if os.environ.get("STALL"):
    take = Quota.take

    def stalling_take(self: Quota, requirement: Requirement, receive: Any) -> Start | None:
        start = take(self, requirement, receive)
        now = time.monotonic()
        if any(not block.used and block.lasts(now) for block in self._blocks.values()):
            time.sleep(float(os.environ["STALL"]))
        return start

    Quota.take = stalling_take  # type: ignore[method-assign]


def record(name: str, value: str) -> None:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        client.rpush(f"sharded:{name}", value)


@app.task(throttle="mail")
def mail(number: int) -> None:
    record("mail:times", str(time.time()))
    record("mail", str(number))


@app.task(throttle="erp")
def erp(number: int) -> None:
    record("erp", str(number))


@app.task(throttle=lambda number: ["mail", "erp"])  # noqa: ARG005  # an argument of the task
def both(number: int) -> None:
    record("both", str(number))


@app.task(throttle="erp", acks_late=True)
def rejecting(number: int) -> None:
    """End, or go back to the line, when the test says so."""
    record("rejecting", str(number))
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        _, end = client.blpop("sharded:ends", 30) or (b"", b"")
    if end == b"reject":
        raise Reject(requeue=True)


@app.task(throttle="tenant:{number}")
def tenant(number: int) -> None:
    record("tenant", str(number))


@app.task(throttle="tenant:{number}")
def long(number: int) -> None:
    record(f"long:{number}", "begin")
    time.sleep(5)
    record(f"long:{number}", "end")


@app.task(throttle="mail")
def inside(number: int) -> None:
    record("begun", str(number))
    throttle["erp"].acquire()
    record("inside", str(number))


@app.task
def plain(number: int, seconds: float = 0.0) -> None:
    record("plain", str(number))
    time.sleep(seconds)


@app.task
def timed_plain(sent: float) -> None:
    record("plain:delays", str(time.time() - sent))


@app.task(throttle="mail")
def timed_mail(sent: float) -> None:
    record("mail:delays", str(time.time() - sent))


@throttle_mode_changed.connect
def record_mode(mode: str, server: str, prefix: str, **_: Any) -> None:
    record("modes", f"{mode} {server} {prefix}")
