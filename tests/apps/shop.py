"""A shop with limits: what the workers of the tests run.

Tasks and signals write what happens to lists in Redis, named ``shop:...``. Most tasks are limited
by a key of their own, ``line``: a test that pauses that key holds back its own tasks and no others.
"""

# ruff: noqa: ARG001 -- a limit reads its key out of arguments that the task does not use

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import Reject
from celery.signals import task_failure, task_received, task_revoked
from celery.worker.request import Request
from kombu import Exchange, Queue

from celery_throttle import Throttle, task_admitted, task_released, task_throttled

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")
STORE = os.environ.get("THROTTLE_URL") or BROKER
RESULTS = os.environ.get("CELERY_RESULT_BACKEND") or STORE

app = Celery("shop", broker=BROKER, backend=RESULTS, set_as_current=False)
app.conf.throttle_url = os.environ.get("THROTTLE_URL")
app.conf.throttle_checks = os.environ.get("SHOP_CHECKS")
app.conf.broker_connection_retry_on_startup = True
if queue := os.environ.get("SHOP_QUEUE"):
    arguments = {"x-max-priority": 10}
    app.conf.task_queues = [Queue(queue, Exchange(queue), queue, queue_arguments=arguments)]
LIMITS = {
    "gate": "200/s burst 5",  # passes quickly what is not held back
    "turn": "50/s",
    "rare": "1/h burst 2",  # two, and no more while a test runs
    "never": "1/h",
    "wide": "1/h burst 2",
    "drain": "50/s",
    "queue": "1/h burst 2 using leaky-queue",
    "pair": ["1/h burst 4", "3/d using sliding-log"],
}
throttle = Throttle(
    app,
    limits=LIMITS,
    routes={"shop.routed.*": "gate:{line}", "shop.one": "rare:{line}"},
)


def connect(url: str) -> None:
    """Let this process, no worker, send tasks to a server and read results there.

    It is the same server for all tests of a run: Celery keeps the connections it has.
    """
    app.conf.update(broker_url=url, result_backend=url)


def task(**options: Any) -> Callable[[Callable[..., Any]], Task]:
    # Not shared: the tests have more apps, and these tasks are not for them.
    return app.task(bind=True, shared=False, **options)


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(RESULTS)


def record(name: str, **what: Any) -> None:
    store().rpush(f"shop:{name}", json.dumps(what, default=repr))


def run(task: Task, **what: Any) -> None:
    record("runs", id=task.request.id, task=task.name, at=time.time(), **what)


# What the worker's main process tells.


@task_received.connect
def on_received(request: Any, **_: Any) -> None:
    record("received", id=request.id)


@task_throttled.connect
def on_throttled(sender: Task, request: Any, **fields: Any) -> None:
    del fields["signal"]
    record("throttled", id=request.id, task=sender.name, at=time.time(), **fields)


@task_admitted.connect
def on_admitted(sender: Task, request: Any, wait: float, **_: Any) -> None:
    record("admitted", id=request.id, task=sender.name, wait=wait)


@task_released.connect
def on_released(sender: Task, request: Any, **fields: Any) -> None:
    del fields["signal"]
    record("released", id=request.id, task=sender.name, at=time.time(), **fields)


@task_revoked.connect
def on_revoked(sender: Task, request: Any, **about: Any) -> None:
    record(
        "revoked",
        id=request.id,
        task=sender.name,
        **{name: about[name] for name in ("expired", "terminated")},
    )


@task_failure.connect
def on_failure(sender: Task, task_id: str, exception: Any, **_: Any) -> None:
    record("failed", id=task_id, task=sender.name, error=type(exception).__name__)


# Twins: the same task without limits and with.


def look_at(task: Task, line: str, value: Any) -> dict[str, Any]:
    run(task)
    return {
        "line": line,
        "value": value,
        "request": json.loads(json.dumps(vars(task.request), default=repr)),
    }


@task()
def plain_look(self: Task, line: str, value: Any = None) -> dict[str, Any]:
    return look_at(self, line, value)


@task(throttle="gate:{line}")
def look(self: Task, line: str, value: Any = None) -> dict[str, Any]:
    return look_at(self, line, value)


@task()
def plain_add(self: Task, line: str, x: int, y: int) -> int:
    run(self)
    return x + y


@task(throttle="gate:{line}")
def add(self: Task, line: str, x: int, y: int) -> int:
    run(self)
    return x + y


def run_again(task: Task) -> None:
    """Write a run down; before one that is a retry, wait until Celery has stored the state RETRY.

    Celery does so only after it has sent the next message, so it might overwrite the last state.
    """
    while task.request.retries and task.AsyncResult(str(task.request.id)).state != "RETRY":
        time.sleep(0.01)
    run(task, retries=task.request.retries)


def retry(task: Task, times: int, **options: Any) -> int:
    run_again(task)
    if task.request.retries < times:
        raise task.retry(countdown=0.2, **options)
    return int(task.request.retries)


@task(max_retries=3)
def plain_again(self: Task, line: str, times: int) -> int:
    return retry(self, times)


@task(max_retries=3, throttle="gate:{line}")
def again(self: Task, line: str, times: int) -> int:
    return retry(self, times)


@task(autoretry_for=(KeyError,), retry_kwargs={"max_retries": 2, "countdown": 0.2})
def plain_flaky(self: Task, line: str) -> None:
    run_again(self)
    raise KeyError(line)


@task(
    autoretry_for=(KeyError,),
    retry_kwargs={"max_retries": 2, "countdown": 0.2},
    throttle="gate:{line}",
)
def flaky(self: Task, line: str) -> None:
    run_again(self)
    raise KeyError(line)


def fail_with(task: Task) -> None:
    run(task)
    raise ValueError("as asked")


@task()
def plain_fail(self: Task, line: str) -> None:
    fail_with(self)


@task(throttle="gate:{line}")
def fail(self: Task, line: str) -> None:
    fail_with(self)


@task(ignore_result=True, throttle="gate:{line}", throttle_track=True)
def forget(self: Task, line: str) -> str:
    run(self)
    return "nobody asks"


def reject(task: Task, *, requeue: bool) -> str:
    run(task)
    if store().incr(f"shop:tries:{task.request.id}") == 1:
        raise Reject("as asked", requeue=requeue)
    return "done"


@task(acks_late=True, throttle="turn:{line}")
def refuse(self: Task, line: str, *, requeue: bool) -> str:
    return reject(self, requeue=requeue)


# Other limits.


@task(throttle="turn:{line}")
def turn(self: Task, line: str) -> None:
    run(self)


@task(throttle="rare:{line}")
def rare(self: Task, line: str, seconds: float = 0) -> None:
    run(self)
    time.sleep(seconds)


@task(throttle="rare:{line}", max_retries=3)
def rare_again(self: Task, line: str, times: int) -> int:
    return retry(self, times)


@task(throttle="never:{line}")
def never(self: Task, line: str) -> None:
    run(self)


@task(throttle=["gate:{line}", "rare:{other}"])
def both(self: Task, line: str, other: str) -> None:
    run(self)


@task(throttle="wide:{line}", throttle_cost=2)
def wide(self: Task, line: str) -> None:
    run(self)


@task(throttle="wide:{line}", throttle_cost="{units}")
def measured(self: Task, line: str, units: Any = 1) -> None:
    run(self)


@task(throttle=["gate:{line}", "pair:{line}"], throttle_cost={"pair": 1.5})
def paired(self: Task, line: str) -> None:
    run(self)


@task(throttle="queue:{line}")
def queued(self: Task, line: str) -> None:
    run(self)


@task(throttle="queue:{line}", throttle_on_max_wait="drop")
def queued_or_dropped(self: Task, line: str) -> None:
    run(self)


@task(throttle="never:{line}", throttle_max_wait=5)
def impatient(self: Task, line: str) -> None:
    run(self)


@task(throttle="never:{line}", throttle_max_wait=5, throttle_on_max_wait="drop")
def dropped(self: Task, line: str) -> None:
    run(self)


@task(throttle="never:{line}", throttle_track=True)
def tracked(self: Task, line: str) -> None:
    run(self)


@task(throttle="gate:{line}:{kind}")
def keyed(self: Task, line: str, *, kind: Any = "usual") -> None:
    run(self)


@task(throttle="drain")
def drain(self: Task, number: int) -> None:
    run(self, number=number)


@task(throttle="drain")
def sleep(self: Task, seconds: float) -> int:
    run(self)
    time.sleep(seconds)
    return os.getpid()


@task(throttle="gate:{line}")
def stay(self: Task, line: str) -> None:
    """Runs until it is told to leave."""
    run(self)
    while not store().blpop([f"shop:leave:{self.request.id}"], timeout=1):
        pass


@task()
def take(self: Task, line: str) -> tuple[int, bool]:
    """Meets a limit in its body, in a process of the pool."""
    run(self)
    return os.getpid(), bool(throttle["rare", line].try_acquire())


@task(throttle="turn:{line}")
def meet(self: Task, line: str) -> None:
    """Meets a limit in its body, and steps into its line if that refuses."""
    run(self)
    throttle["rare", line].acquire(max_wait=0)


@task()
def collect(self: Task, results: Sequence[Any]) -> Any:
    run(self)
    return sum(results)


@task(throttle="gate:{line}")
def limited_collect(self: Task, results: Sequence[Any], line: str) -> Any:
    run(self)
    return sum(results)


@task()
def note(self: Task, *args: Any) -> None:
    run(self, args=args)


# Tasks that know nothing of limits, and have ways of their own.


class OwnRequest(Request):
    def acknowledge(self) -> None:
        record("own", id=self.id, what="acknowledge")
        super().acknowledge()


class OwnTask(Task):
    abstract = True
    Request = OwnRequest  # type: ignore[assignment]  # the stubs know only its name

    def before_start(self, *args: Any) -> None:
        record("own", id=args[0], what="before_start")


@task(base=OwnTask, name="shop.routed.own")
def routed_own(self: Task, line: str) -> None:
    run(self)


@task(name="shop.routed.usual")
def routed_usual(self: Task, line: str) -> None:
    run(self)


@task(name="shop.one")
def routed_one(self: Task, line: str) -> None:
    run(self)


class ClassTask(Task):
    name = "shop.routed.class"

    def run(self, line: str) -> None:  # noqa: ARG002 -- the key of its limit
        run(self)


app.register_task(ClassTask())
