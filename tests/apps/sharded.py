"""Two shards, each with limits of its own on a server of its own."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

from celery_throttle import Throttle
from celery_throttle.signals import throttle_mode_changed
from celery_throttle.tasks.app_limits import AppLimits
from celery_throttle.worker.bootstep import ThrottleStep
from celery_throttle.worker.worker import ThrottleWorker

HOME_LIMITS = {"mail": "3/h burst 3 outage closed"}
ERP_LIMITS = {"erp": "2/h burst 2 outage closed"}

app = Celery("sharded", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
throttle = Throttle(app, HOME_LIMITS | ERP_LIMITS, url=os.environ["HOME_URL"], lease=2)


class ShardedStep(ThrottleStep):
    """The home shard has the limit "mail", the other shard the limit "erp"."""

    def create(self, c: Any) -> ThrottleWorker:  # type: ignore[override]  # as in its base
        home = {"url": os.environ["HOME_URL"], "limits": HOME_LIMITS, "lease": 2}
        erp = {"url": os.environ["ERP_URL"], "limits": ERP_LIMITS, "lease": 2}
        shards = {"home": AppLimits(app, home), "erp": AppLimits(app, erp)}
        return ThrottleWorker(c, shards, lambda limits: "erp" if "erp" in limits else "home")


app.steps["consumer"] = {ShardedStep}


def record(name: str, value: str) -> None:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        client.rpush(name, value)


@app.task(throttle="mail")
def mail(number: int) -> None:
    record("sharded:mail", str(number))


@app.task(throttle="erp")
def erp(number: int) -> None:
    record("sharded:erp", str(number))


@app.task
def plain(number: int) -> None:
    record("sharded:plain", str(number))


@throttle_mode_changed.connect
def record_mode(mode: str, server: str, prefix: str, **_: Any) -> None:
    record("sharded:modes", f"{mode} {server} {prefix}")
