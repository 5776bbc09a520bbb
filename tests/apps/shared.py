"""Tasks of two apps in one process: ``limited`` has limits, ``plain`` has none."""

from __future__ import annotations

import os

from celery import Celery, Task

from celery_throttle import Throttle, ThrottledTask

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")


def make_app(name: str) -> Celery:
    app = Celery(name, broker=URL, backend=URL, set_as_current=False)
    app.conf.update(task_default_queue=name, broker_connection_retry_on_startup=True)
    return app


limited, plain = make_app("limited"), make_app("plain")
throttle = Throttle(limited, {"api": "100/s", "slow": "4/s"})


class Usual(Task):
    """A class of Celery's own base, as a library has it."""

    name = "shared.usual"
    throttle = "api"

    def run(self, number: int) -> int:
        return number


class Ours(ThrottledTask):
    name = "shared.ours"
    throttle = "api"

    def run(self, number: int) -> int:
        return number


class Body(Task):
    """Meets a limit in its body."""

    name = "shared.body"

    def run(self, number: int) -> int:
        throttle["slow"].acquire(max_wait=0)
        return number


class Fails(Task):
    name = "shared.fails"
    throttle = "api"

    def run(self, number: int) -> int:
        raise ValueError(number)


CLASSES = (Usual, Ours, Body, Fails)


def register(app: Celery) -> None:
    for task in CLASSES:
        app.register_task(task())


for each in (limited, plain):
    register(each)
