"""Tasks that monitors watch, each with a key of its own: a test may pause that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, Task

from celery_throttle import Throttle

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app = Celery("monitored", broker=URL, backend=URL, set_as_current=False)
app.conf.result_expires = 600
app.conf.throttle_waiting = os.environ.get("MONITORED_WAITING")
#: Nothing but the pause of a key makes a task wait at "gate"; "hour" has room for one task.
throttle = Throttle(app, {"gate": "1000/s burst 1000", "hour": "1/h"})


def limited(name: str, **options: Any) -> Callable[[Callable[..., Any]], Task]:
    """Make a decorator for a task with a key of its own."""
    return app.task(name=name, shared=False, throttle=f"gate:{name}", **options)


@app.task(shared=False, name="plain")
def plain() -> None: ...


@limited("passes")
def passes() -> None: ...


@limited("waits")
def waits() -> None: ...


@limited("endless")
def endless() -> None: ...


@limited("expires")
def expires() -> None: ...


@limited("fans")
def fans() -> None: ...


@limited("ended")
def ended() -> None:
    time.sleep(60)


@limited("sleeps")
def sleeps(seconds: float) -> None:
    time.sleep(seconds)


@limited("retries", bind=True)
def retries(self: Any) -> None:
    if self.request.retries == 0:
        # Celery sends the event task-retried after it has sent the next message: before that runs.
        raise self.retry(countdown=3)


@app.task(
    shared=False,
    name="late",
    throttle="hour:late",
    throttle_max_wait=1,
    throttle_on_max_wait="drop",
)
def late() -> None: ...


@app.task(shared=False, name="fails", throttle="hour:fails", throttle_max_wait=1)
def fails() -> None: ...


@app.task(shared=False, name="inside")
def inside() -> None:
    throttle["gate", "inside"].acquire(max_wait=0)


@app.task(shared=False, name="hourly", throttle="hour:hourly")
def hourly() -> None: ...
