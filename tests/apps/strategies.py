"""Tasks with strategies of their own: one collects batches, one counts what it is called with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import redis
from celery import Celery, Task
from celery.signals import worker_ready
from celery.utils.imports import symbol_by_name
from celery.worker.request import create_request_cls  # type: ignore[attr-defined]  # missing in the stubs
from celery.worker.strategy import default

from celery_throttle import Throttle

#: None if it is not installed: it names no support for the newest version of Celery.
real_batches = find_spec("celery_batches") and import_module("celery_batches")

app = Celery("strategies", broker=os.environ.get("CELERY_BROKER_URL"), set_as_current=False)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="strategies",
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=50,
)
LIMITS = {
    "batches": "20/s burst 10",
    "counted": "20/s burst 5",
    "slots": "3 at once",
    "elements": "20/s burst 10",
}
throttle = Throttle(app, LIMITS, url=os.environ.get("THROTTLE_URL"))


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["THROTTLE_URL"])


def note(what: str, *words: object) -> None:
    _store().rpush(f"strategies-{what}", " ".join(map(str, (*words, time.time()))))


class Batches(Task):
    """As celery-batches works, which is not there for every Celery.

    Its strategy hands no request to the pool: the pool gets a function of its own.
    """

    abstract = True
    typing = False
    flush_every, flush_interval = 10, 0.5

    def Strategy(  # type: ignore[override]  # noqa: N802  # the stubs know only a name
        self, task: Task, app: Celery, consumer: Any
    ) -> Callable[..., None]:
        base: type = symbol_by_name(task.Request)
        request_class = create_request_cls(
            base, task, consumer.pool, consumer.hostname, consumer.event_dispatcher, app=app
        )
        buffer: list[Any] = []

        def flush() -> None:
            requests = [buffer.pop(0) for _ in range(len(buffer))]
            late = [one for one in requests if task.acks_late]
            early = [one for one in requests if not task.acks_late]
            if requests:
                consumer.pool.apply_async(
                    run_batch,
                    (task.name, [(one.id, *one.args) for one in requests]),
                    accept_callback=lambda *_: [one.acknowledge() for one in early],
                    callback=lambda *_: [one.acknowledge() for one in late],
                )

        def collect(
            message: Any, body: Any, ack: Any, reject: Any, _callbacks: Any, **_options: Any
        ) -> None:
            request = request_class(
                message, on_ack=ack, on_reject=reject, app=app, hostname=consumer.hostname,
                task=task, body=body or message.body, decoded=False,
                connection_errors=consumer.connection_errors,
            )  # fmt: skip
            buffer.append(request)
            if len(buffer) >= self.flush_every:
                flush()

        consumer.timer.call_repeatedly(self.flush_interval, flush)
        return collect


def run_batch(name: str, requests: list[tuple[Any, ...]]) -> None:
    app.tasks[name].run(requests)


@app.task(base=Batches, throttle="batches")
def batched(requests: list[tuple[Any, ...]]) -> None:
    for task_id, number in requests:
        note("batched", task_id, number)


@app.task(base=Batches, throttle="slots", acks_late=True)
def slow_batched(requests: list[tuple[Any, ...]]) -> None:
    note("slow", len(requests))
    time.sleep(0.1)


@app.task(base=Batches, throttle="slots")
def early_batched(requests: list[tuple[Any, ...]]) -> None:
    note("early", len(requests))


if real_batches:

    @app.task(base=real_batches.Batches, throttle="batches", flush_every=10, flush_interval=0.5)
    def real(requests: list[Any]) -> None:
        for request in requests:
            note("real", request.id, *request.args)


def counting(task: Task, app: Celery, consumer: Any) -> Callable[..., Any]:
    """Celery's strategy, with a side effect before and after."""
    strategy = default(task, app, consumer)

    def count(message: Any, *args: Any, **options: Any) -> Any:
        note("seen", message.headers["id"])
        result = strategy(message, *args, **options)
        note("passed", message.headers["id"])
        return result

    return count


@app.task(throttle="counted", Strategy="tests.apps.strategies:counting")
def counted(number: int) -> None:
    note("ran", counted.request.id, number)


@app.task(base=Task, throttle="counted")
def late(number: int) -> None:
    note("ran", late.request.id, number)


@worker_ready.connect
def define_late(sender: Any, **_: Any) -> None:
    """Set the strategy of a task as if it was defined now: its requests do not pass the gate."""
    app.tasks[late.name].Request = "celery.worker.request:Request"
    sender.update_strategies()


@app.task(Strategy="tests.apps.strategies:counting")
def unlimited(number: int) -> None:
    note("ran", unlimited.request.id, number)


@app.task(throttle="elements:{key}")
def element(number: int, key: str = "one") -> None:
    throttle["elements", key].acquire(max_wait=0)  # with the units that the run has
    note("element", number)
