"""The Celery app of the demo's workers: one task with a limit, one without.

The workers append events to a list on the server: ``ready``, ``delivered <task id>``,
``limited <sent> <started>`` and ``plain <sent> <started>``. Times are of the monotonic clock, which
all processes of a machine share.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import redis
from celery import Celery
from celery.signals import task_received, worker_ready

from celery_throttle import Throttle
from celery_throttle.cli.demo.setup import LIMIT, Setup

#: Seconds after which the events expire, if the demo cannot delete them.
EVENTS_TTL_SECONDS = 600

setup = Setup.from_environment()
app = Celery("demo")
setup.configure(app)
throttle = Throttle(app, {LIMIT: setup.limit}, url=setup.url, prefix=setup.prefix)


@app.task(name="limited", throttle=LIMIT)
def limited(sent: float) -> None:
    """A task under the limit; ``sent``: when it was sent."""
    record_event("limited", sent, time.monotonic())


@app.task(name="plain")
def plain(sent: float) -> None:
    """A task without a limit; ``sent``: when it was sent."""
    record_event("plain", sent, time.monotonic())


@task_received.connect
def _received(request: Any, **_: Any) -> None:
    if request.name == limited.name:
        record_event("delivered", request.id)


@worker_ready.connect
def _ready(**_: Any) -> None:
    record_event("ready")


def record_event(*words: str | float) -> None:
    """Append an event."""
    with _client().pipeline(transaction=False) as pipe:
        pipe.rpush(setup.events, " ".join(map(str, words)))
        pipe.expire(setup.events, EVENTS_TTL_SECONDS)
        pipe.execute()


@cache
def _client() -> redis.Redis:
    """Return the connection of this process. First used after the fork, it is not shared."""
    return redis.Redis.from_url(setup.url)
