"""The Celery app of the demo: one task with a limit, one without.

The demo makes it to send tasks; a worker is ``python -m`` this module, with the arguments of
:func:`make_app` in its environment. Workers append events to a list on the server: ``ready``,
``delivered <task id>``, ``limited <sent> <started>`` and ``plain <sent> <started>``. Times are of
the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import redis
from celery import Celery
from celery.signals import task_received, worker_ready

from celery_throttle import Throttle

#: The name of the limit.
LIMIT = "demo"

#: The environment variable of a worker. The URL in it may hold a password.
VARIABLE = "THROTTLE_DEMO"

#: Seconds after which the events expire, if the demo cannot delete them.
EVENTS_TTL_SECONDS = 600


def key_prefix(name: str) -> str:
    """Return the prefix of all keys of a demo on its server."""
    return f"{{{name}}}"


def events_key(name: str) -> str:
    """Return the key of the events of the workers."""
    return f"{key_prefix(name)}:events"


def make_app(url: str, name: str, limit: str) -> Celery:
    """Return the app of the demo of this name; ``url``: of the broker and the limits."""
    app = Celery(name, set_as_current=False)
    app.conf.update(
        broker_url=url,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"global_keyprefix": f"{key_prefix(name)}:broker:"},
        task_default_queue=name,
        task_ignore_result=True,
        worker_enable_remote_control=False,
    )
    Throttle(app, {LIMIT: limit}, url=url, prefix=key_prefix(name))
    client = redis.Redis.from_url(url)

    def record_event(*words: str | float) -> None:
        with client.pipeline(transaction=False) as pipe:
            pipe.rpush(events_key(name), " ".join(map(str, words)))
            pipe.expire(events_key(name), EVENTS_TTL_SECONDS)
            pipe.execute()

    @app.task(name="limited", throttle=LIMIT, shared=False)
    def limited(sent: float) -> None:
        record_event("limited", sent, time.monotonic())

    @app.task(name="plain", shared=False)
    def plain(sent: float) -> None:
        record_event("plain", sent, time.monotonic())

    @task_received.connect(weak=False)
    def received(request: Any, **_: Any) -> None:
        if request.name == "limited":
            record_event("delivered", request.id)

    @worker_ready.connect(weak=False)
    def ready(**_: Any) -> None:
        record_event("ready")

    return app


if __name__ == "__main__":
    make_app(*json.loads(os.environ[VARIABLE])).worker_main(sys.argv[1:])
