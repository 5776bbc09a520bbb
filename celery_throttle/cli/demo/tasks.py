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

#: The name of the limit, and the key of the list of events.
LIMIT, EVENTS = "demo", "events"
VARIABLE = "THROTTLE_DEMO"


def make_app(url: str, limit: str) -> Celery:
    """Return the app; ``url``: of the server of its own, which is broker and limits server."""
    app = Celery("demo", set_as_current=False)
    app.conf.update(
        broker_read_url=url,  # the environment may name another broker
        broker_write_url=url,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        worker_enable_remote_control=False,
    )
    Throttle(app, {LIMIT: limit}, url=url)
    client = redis.Redis.from_url(url)

    def record_event(*words: str | float) -> None:
        client.rpush(EVENTS, " ".join(map(str, words)))

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
