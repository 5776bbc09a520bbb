"""The foreign app. Its tasks are defined before the modules of `imports` are read."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery
from kombu.utils.imports import symbol_by_name

app = Celery("foreign", broker=os.environ["FOREIGN_BROKER"], set_as_current=False)
app.conf.update(symbol_by_name(os.environ["FOREIGN_CONFIG_OPTIONS"]))


@app.task(name="execute_workload")
def execute(number: int) -> None:
    client: Any = redis.Redis.from_url(os.environ["FOREIGN_BROKER"])
    with client:
        client.rpush("ran", number)
