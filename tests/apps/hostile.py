"""Tasks that are sent what nobody should send, and limits with bounds."""

# ruff: noqa: ARG001 -- a limit reads its key out of arguments that the task does not use

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from celery_throttle import Throttle
from celery_throttle.limits.requirement import MAX_LIMITS_PER_TASK

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app = Celery("hostile", broker=BROKER, backend=BROKER, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
app.conf.accept_content = os.environ.get("HOSTILE_ACCEPT", "json").split(",")
LIMITS = {
    "gate": "100/s burst 50",
    "few": "1/h max-keys 3",
    "short": "1/h max-waiting 3",
    **{f"wide{number}": "100/s burst 50" for number in range(MAX_LIMITS_PER_TASK)},
}
throttle = Throttle(app, limits=LIMITS)


@app.task(shared=False)
def plain(key: Any = None, *rest: Any) -> str:
    return "ran"


@app.task(shared=False, throttle="gate:{key}")
def limited(key: Any = None, *rest: Any) -> str:
    return "ran"


@app.task(shared=False, throttle=[f"wide{number}" for number in range(MAX_LIMITS_PER_TASK)])
def wide() -> str:
    return "ran"


@app.task(shared=False, throttle="few:{key}")
def few(key: Any) -> str:
    return "ran"


@app.task(shared=False, throttle="few:{key}", throttle_on_max_wait="drop")
def few_or_dropped(key: Any) -> str:
    return "ran"


@app.task(shared=False, throttle="short")
def short() -> str:
    return "ran"


@app.task(shared=False, throttle="short", throttle_on_max_wait="drop")
def short_or_dropped() -> str:
    return "ran"
