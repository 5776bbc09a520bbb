"""With celery-throttle of PyPI: ``python -m benchmarks.apps.dispatcher COUNT INTERVAL``.

It submits this number of tasks ``limited``, prints ``ready``, and sends them to the broker within
their limit, until it is ended. Workers are those of plain Celery. That package is named
``celery_throttle``, as ours is: here it is the other one, which comes first in ``PYTHONPATH``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import redis

from benchmarks.apps import plain
from benchmarks.apps.tasks import SETTINGS

QUEUE = "api"


def main(count: int, interval: float) -> None:
    """Submit the tasks, then dispatch."""
    other: Any = import_module("celery_throttle")
    throttle = other.CeleryThrottle(
        celery_app=plain.app,
        redis_client=redis.Redis.from_url(SETTINGS["store"]),
        target_queue="celery",
    )
    throttle.create_queue(SETTINGS["api"].replace("/", "/1"), QUEUE)
    throttle.submit_multiple_tasks(QUEUE, [("limited", (), {})] * count)
    print("ready", flush=True)
    throttle.run_dispatcher(interval)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
