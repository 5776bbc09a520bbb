"""Tasks that are refused at the gate, and a result backend that may be down."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery
from celery.backends.redis import RedisBackend

from celery_throttle import Throttle

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")


class Results(RedisBackend):
    """Raises an error instead of storing a result while the key ``refused:down`` exists."""

    def store_result(self, *args: Any, **options: Any) -> Any:
        with redis.Redis.from_url(BROKER) as client:
            if client.exists("refused:down"):
                raise ConnectionError("the result backend is down")
        return super().store_result(*args, **options)


app = Celery("refused", broker=BROKER, backend=f"{__name__}:Results+{BROKER}", set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
throttle = Throttle(app, {"never": "1/h"})


@app.task(throttle="never", throttle_max_wait=5)
def failed() -> None: ...


@app.task(throttle="never", throttle_max_wait=5, throttle_on_max_wait="drop")
def dropped() -> None: ...


@app.task(throttle="never")
def limited() -> None: ...


@app.task(ignore_result=True)
def wait(key: str) -> None:
    with redis.Redis.from_url(BROKER) as client:
        client.blpop(key, 30)


@app.task(ignore_result=True)
def plain(key: str) -> None:
    with redis.Redis.from_url(BROKER) as client:
        client.rpush(key, "ran")
