"""An app with mistakes: each is of its own task, or of a setting, and of nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery import Celery, Task, shared_task

from celery_throttle import Throttle

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app = Celery("misspelt", broker=URL, backend=URL)
if os.environ.get("MISSPELT_SETTINGS"):
    app.conf.throttle_leese = 5
throttle = Throttle(
    app,
    {"stripe": "100/s", "mail": "10/m"},
    routes={"misspelt.routed": "mail:{nobody}"},
)


def shared(**options: Any) -> Callable[[Callable[..., Any]], Task]:
    """As a library has it: each app of the process gets the task when it is finalized."""
    decorate: Callable[[Callable[..., Any]], Task] = shared_task(**options)
    return decorate


@shared(name="misspelt.wrong", throttle="strip")
def wrong(number: int) -> int:
    return number


@shared(name="misspelt.limited", throttle="stripe")
def limited(number: int) -> int:
    return number


@shared(name="misspelt.plain")
def plain(number: int) -> int:
    return number


@app.task(name="misspelt.costly", throttle="stripe", throttle_cost=2)
def costly(number: int) -> int:
    return number


@app.task(name="misspelt.routed")
def routed(number: int) -> int:
    return number


@app.task(name="misspelt.attribute", throttle_limit="stripe")
def attribute(number: int) -> int:
    return number
