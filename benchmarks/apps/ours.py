"""With celery_throttle."""

from __future__ import annotations

from typing import Any

from celery import Celery

from benchmarks.apps.tasks import DIRECTORY, SETTINGS, define
from benchmarks.marks import open_marks, write
from celery_throttle import Throttle, task_throttled

app = Celery("ours", broker=SETTINGS["broker"])
throttle = Throttle(
    app,
    limits={"api": SETTINGS["api"], "tenant": SETTINGS["tenant"]},
    url=SETTINGS["store"],
    prefix=SETTINGS["prefix"],
)


def cost_of(key: str) -> int:
    """Return the cost of a task ``computed``."""
    return 1 if key else 2


define(
    app,
    limited={"throttle": "api"},
    keyed={"throttle": "tenant:{key}"},
    both={"throttle": ["api", "tenant:{key}"]},
    computed={"throttle": lambda key: throttle["tenant", key], "throttle_cost": cost_of},
)

_PARKS = open_marks(DIRECTORY / "parks")


@task_throttled.connect
def _throttled(request: Any, **_: Any) -> None:
    write(_PARKS, request.id)
