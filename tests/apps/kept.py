"""Tasks of which one may wait for each key."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import task_revoked
from redis import Redis

from celery_throttle import Throttle

URL = os.environ.get("CELERY_BROKER_URL", "redis://")
app = Celery("kept", broker=URL, backend=URL)
app.conf.update(
    task_default_queue="kept",
    broker_transport_options={"visibility_timeout": 3},
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
)
throttle = Throttle(app, {"search": "1000/s"}, url=URL, lease=3)


def connect(url: str) -> None:
    """Let the client's side use a server."""
    app.conf.update(broker_url=url, result_backend=url)


@app.task(
    shared=False, throttle="search:{document}", throttle_keep_waiting="newest", acks_late=True
)
def index(document: int, version: int) -> int:
    with Redis.from_url(URL) as client:
        client.rpush("runs", f"{document} {version}")
    return version


@app.task(shared=False, throttle="search:{document}", throttle_keep_waiting="first")
def refresh(document: int, version: int) -> int:
    return version + 0 * document


@task_revoked.connect(weak=False)
def note_revoked(request: Any, **_: Any) -> None:
    with Redis.from_url(URL) as client:
        client.rpush("revoked", request.id)
