"""The Celery app of the demo's workers: one task with a limit, one without, and a notebook.

The notebook is a list on the server. An entry is one of ``ready``, ``delivered <task id>``,
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
from celery_throttle.demo.setup import LIMIT, Setup

#: Seconds after which the notebook is gone, whatever happens to the demo.
KEPT = 600

setup = Setup.from_environment()
app = Celery("demo")
setup.configure(app)
throttle = Throttle(app, {LIMIT: setup.limit}, url=setup.url, prefix=setup.prefix)


@app.task(name="limited", throttle=LIMIT)
def limited(sent: float) -> None:
    """A task under the limit. It is sent with the time of its sending."""
    note("limited", sent, time.monotonic())


@app.task(name="plain")
def plain(sent: float) -> None:
    """A task without a limit."""
    note("plain", sent, time.monotonic())


@task_received.connect
def _received(request: Any, **_: Any) -> None:
    if request.name == limited.name:
        note("delivered", request.id)


@worker_ready.connect
def _ready(**_: Any) -> None:
    note("ready")


def note(*words: str | float) -> None:
    """Write an entry."""
    with _notebook().pipeline(transaction=False) as pipe:
        pipe.rpush(setup.events, " ".join(map(str, words)))
        pipe.expire(setup.events, KEPT)
        pipe.execute()


@cache
def _notebook() -> redis.Redis:
    """The connection of this process: first used after the fork, it is not shared."""
    return redis.Redis.from_url(setup.url)
