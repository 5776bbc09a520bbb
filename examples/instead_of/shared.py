"""What both sides of each example use: an app, and a record of what its tasks did."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.signals import after_task_publish, task_failure, task_success
from redis import Redis

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
_redis: Any = Redis
client = _redis.from_url(URL)

#: The names of the apps of this process that are recorded.
recorded_apps: set[str] = set()


def make_app(name: str) -> Celery:
    """Return an app whose tasks have a queue of their own."""
    app = Celery(name, broker=URL, set_as_current=False)
    recorded_apps.add(name)
    app.conf.update(
        task_default_queue=name,
        task_ignore_result=True,
        worker_prefetch_multiplier=4,
        broker_connection_retry_on_startup=True,
    )
    return app


def record_key(name: str, what: str) -> str:
    """Return the key of what is recorded of an app: messages, runs, ended or failed."""
    return f"instead_of:{name}:{what}"


@contextmanager
def recorded(name: str, key: object) -> Generator[None, None, None]:
    """Record the start and the end of a run, and the key of the limit that it counts for."""
    start = time.time()
    yield
    client.rpush(record_key(name, "runs"), f"{start} {time.time()} {key}")


@after_task_publish.connect(weak=False)
def count_message(routing_key: str, **_: Any) -> None:
    """Count the messages that are sent: by the sender, and by each retry."""
    if routing_key in recorded_apps:
        client.incr(record_key(routing_key, "messages"))


@task_success.connect(weak=False)
def count_end(sender: Any, **_: Any) -> None:
    """Count the tasks that ended."""
    if sender.app.main in recorded_apps:
        client.incr(record_key(sender.app.main, "ended"))


@task_failure.connect(weak=False)
def count_failure(sender: Any, **_: Any) -> None:
    """Count the tasks that failed, which have ended, too."""
    if sender.app.main in recorded_apps:
        client.incr(record_key(sender.app.main, "failed"))
        client.incr(record_key(sender.app.main, "ended"))
