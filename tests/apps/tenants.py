"""Tasks of tenants that share one API."""

from __future__ import annotations

import os

import redis
from celery import Celery

from celery_throttle import Throttle

app = Celery("tenants", broker=os.environ.get("CELERY_BROKER_URL"))
app.conf.update(
    task_ignore_result=True,
    task_default_queue="tenants",
    broker_connection_retry_on_startup=True,
)
LIMITS = {"api": "50/s", "tenant": "1000/s burst 1000"}
throttle = Throttle(app, LIMITS)


@app.task(throttle=["api", "tenant:{tenant}"])
def call(tenant: str) -> None:
    with redis.Redis.from_url(os.environ["CELERY_BROKER_URL"]) as client:
        client.rpush("tenants-calls", tenant)
