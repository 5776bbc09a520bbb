"""Classes of tasks that apps in one process share: ``limited`` has limits, the others have none.

``python -m tests.apps.shared WHICH`` does as a test session does: workers of two apps run in one
process, one after the other, and what their tasks gave is printed. WHICH: whether the apps have a
class in common, or one and the same task.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery, Task
from celery.contrib.testing.worker import start_worker

from celery_throttle import Throttle, ThrottledTask

URL = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")


def make_app(name: str) -> Celery:
    backend = URL if URL.startswith("redis") else None
    app = Celery(name, broker=URL, backend=backend, set_as_current=False)
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


#: An app that may have limits one day.
idle = make_app("idle")
Throttle(idle)

for app in (limited, plain, idle):
    for each in (Usual, Ours, Body, Fails):
        app.register_task(each())


def results(app: Celery, names: tuple[str, ...]) -> list[Any]:
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=100):
        sent = [app.send_task(name, (7,)) for name in names]
        return [repr(result.get(timeout=100, propagate=False)) for result in sent]


def main() -> None:
    product, other = make_app("product"), make_app("other")
    Throttle(product, {"api": "100/s", "slow": "4/s"})
    classes: tuple[type[Task], ...] = (Usual, Ours, Fails)
    one = Usual()
    for app in (product, other):
        for task in classes:
            app.register_task(one if sys.argv[1] == "task" and task is Usual else task())
    names = tuple(str(task.name) for task in classes)
    print(results(product, names))
    print(results(other, names))
    print(Usual.Request, Fails.Request)


if __name__ == "__main__":
    main()
