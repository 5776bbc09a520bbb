"""The app whose keys are recorded. It runs with the recorded version and with the present one.

So it uses nothing but the public API and Celery. Each run of a task is an item of the list
``recorded:runs``. With ``RECORDING`` set, tasks that a killed worker should hold do not end. With
``WITHOUT_FRESH`` set, a worker has no code for the task ``fresh``.
"""

# ruff: noqa: ARG001 -- limits read their keys out of arguments that the tasks do not use

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery, Task

from celery_throttle import Throttle

RUNS = "recorded:runs"

#: The first queue has tasks of each kind, the second some with the same limits, and the third those
#: that only a part of the workers have code for.
QUEUES = ("celery", "second", "third")

LIMITS: dict[str, Any] = {
    "pass": "100/s burst 20",
    "held": "50/s",
    "tenant": "100/s burst 10 max-keys 5",
    "pace": "100/s",
    "nights": "2 at once",
    "slots": "2 at once",
    "inner": "1/366d burst 3",
    "fresh": "100/s",
    "few": "100/s max-waiting 3",
    "stripe": "1/h",
    # These are only used by calls.
    "gcra": "1/366d burst 100",
    "token": "1/366d burst 100 using token-bucket",
    "leaky": "1/366d burst 100 using leaky-bucket",
    "outflow": "10/s burst 50 using leaky-queue",
    "fixed": "100/day using fixed-window",
    "calendar": "500/day using fixed-window in America/Los_Angeles at 07:30",
    "first": "100/366d using fixed-window from first-request",
    "log": "100/366d using sliding-log",
    "sliding": "100/366d using sliding-window parts 6",
    "dropped": "100/366d using sliding-window parts 6 oldest dropped",
    "adaptive": "adaptive 10..100/s",
    "several": ["1/366d burst 50", "10 at once"],
    "keyed": "1/366d burst 10 max-keys 2",
    "closed": "5/s outage closed",
}


def note(task: Task, number: int, *, is_held: bool = False) -> int:
    """Record a run: the task, and its message as far as a task can see it."""
    request: Any = task.request
    delivery = request.delivery_info or {}
    run = {
        "id": request.id,
        "name": task.name,
        "args": request.args,
        "kwargs": request.kwargs,
        "trace": (request.headers or {}).get("trace"),
        "retries": request.retries,
        "priority": delivery.get("priority"),
        "queue": delivery.get("routing_key"),
    }
    with redis.Redis.from_url(task.app.conf.broker_url) as client:
        client.rpush(RUNS, json.dumps(run))
    while is_held and os.environ.get("RECORDING"):
        time.sleep(1)
    return number


def work(self: Task, number: int, *, text: str = "") -> int:
    return note(self, number)


def share(self: Task, number: int, who: str) -> int:
    return note(self, number)


def again(self: Any, number: int) -> int:
    """Fails once, and waits for its second run."""
    if not self.request.retries:
        self.app.throttle["pass", "again"].pause(None)
        raise self.retry(countdown=0)
    return note(self, number)


def meet(self: Any, number: int) -> int:
    """Requests a limit in its body, and joins the line of that limit."""
    self.app.throttle["inner"].acquire(2, max_wait=0)
    return note(self, number)


def hold(self: Task, number: int) -> int:
    return note(self, number, is_held=True)


def slot(self: Task, number: int) -> int:
    return note(self, number, is_held=True)


def night(self: Task, number: int, *, held: bool = False, fail: bool = False) -> int:
    note(self, number, is_held=held)
    if fail:
        raise ValueError(number)
    return number


def quick(self: Task, number: int) -> int:
    return note(self, number)


def few(self: Task, number: int) -> int:
    return note(self, number)


def fresh(self: Task, number: int) -> int:
    return note(self, number)


def plain(self: Task, number: int) -> int:
    return note(self, number)


TASKS: dict[Callable[..., Any], dict[str, Any]] = {
    work: {"throttle": "held"},
    share: {"throttle": ["held", "tenant:{who}"]},
    again: {"throttle": "pass:again", "max_retries": 3},
    meet: {"throttle": "pace"},
    hold: {"throttle": "pace", "acks_late": True},
    slot: {"throttle": "slots", "acks_late": True},
    night: {"throttle": "nights", "acks_late": True},
    quick: {"throttle": "pass"},
    few: {"throttle": "few"},
    fresh: {"throttle": "fresh"},
    plain: {},
}


def make_app(url: str, **settings: Any) -> Any:
    """Return the app, with broker, limits and results on one server."""
    app: Any = Celery("recorded", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        broker_transport_options={"visibility_timeout": 3},
        broker_connection_retry_on_startup=True,
        result_expires=366 * 86_400,
        **settings,
    )
    Throttle(app, LIMITS)
    for function, options in TASKS.items():
        name = function.__name__
        if name != "fresh" or not os.environ.get("WITHOUT_FRESH"):
            app.task(name=name, bind=True, shared=False, lazy=False, **options)(function)
    return app


app = make_app(os.environ.get("CELERY_BROKER_URL", "redis://localhost/0"))
