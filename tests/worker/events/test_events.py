"""Which events workers send for tasks with limits, and when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_throttle import Throttle
from tests.apps import monitored
from tests.programs import ROOT
from tests.servers.server import wait_until
from tests.tether import Tethered
from tests.workers import QUICK, StartWorker

pytestmark = pytest.mark.workers

APP = "tests.apps.monitored"
WITH_EVENTS = (*QUICK, "-E")


@pytest.fixture
def client(redis_url: str) -> Throttle:
    """The app's limits in this process, on an empty database."""
    monitored.app.conf.update(broker_url=redis_url, result_backend=redis_url)
    monitored.throttle.register()
    return monitored.throttle


class Seen:
    """The events that were received, in their order."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def types(self, task: AsyncResult) -> list[str]:
        return [event["type"] for event in self.of(task)]

    def of(self, task: AsyncResult) -> list[dict[str, Any]]:
        found = [event for event in self.events if event.get("uuid") == task.id]
        return sorted(found, key=lambda event: int(event["clock"]))

    def wait_for(self, event: str, task: AsyncResult) -> None:
        wait_until(lambda: event in self.types(task), event)


@pytest.fixture
def seen(redis_url: str) -> Iterator[Seen]:
    """All events, from before a worker starts."""
    seen, ready, ended = Seen(), threading.Event(), threading.Event()

    def receive() -> None:
        with monitored.app.connection_for_read(redis_url) as connection:
            receiver = monitored.app.events.Receiver(connection, handlers={"*": seen.events.append})
            with receiver.consumer_context(wakeup=False) as (own, *_):
                ready.set()
                while not ended.is_set():
                    with suppress(TimeoutError):
                        own.drain_events(timeout=0.1)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    assert ready.wait(10)
    yield seen
    ended.set()
    thread.join()


@contextmanager
def paused(throttle: Throttle, key: str) -> Iterator[None]:
    throttle["gate", key].pause(3600)
    try:
        yield
    finally:
        throttle["gate", key].resume()


WAITED = ["task-received", "throttle-parked", "task-started", "task-succeeded"]


@pytest.mark.parametrize("waiting", ["line", "broker"])
def test_of_a_task_that_waits(
    client: Throttle, seen: Seen, start_worker: StartWorker, redis_url: str, waiting: str
) -> None:
    start_worker(APP, redis_url, options=WITH_EVENTS, env={"MONITORED_WAITING": waiting})
    with paused(client, "waits"):
        task = monitored.waits.delay()
        seen.wait_for("throttle-parked", task)
    if waiting == "broker":  # such a task keeps its time, whatever happens to the limit
        assert seen.of(task)[0]["eta"] is not None
        return
    seen.wait_for("task-succeeded", task)
    assert seen.types(task) == WAITED
    received, parked, *_ = seen.of(task)
    assert received["eta"] is not None
    assert {"hostname", "limit", "key", "retry_after", "position", "expected"} <= parked.keys()
    assert (parked["name"], parked["limit"], parked["key"]) == ("waits", "gate", "waits")


@pytest.mark.thorough
def test_that_begin_at_run_time(
    client: Throttle, seen: Seen, start_worker: StartWorker, redis_url: str
) -> None:
    worker = start_worker(APP, redis_url)  # without -E
    control: Any = monitored.app.control
    of_worker: Any = {"destination": [worker.hostname], "timeout": 10}

    def run_one() -> AsyncResult:
        """Run a task; it is done when the worker says so, as its result is there before."""
        with paused(client, "waits"):
            task = monitored.waits.delay()
            wait_until(lambda: client["gate", "waits"].status().waiting, "a waiting task")
        task.get(timeout=30)
        inspect = control.inspect(**of_worker)
        wait_until(lambda: inspect.active() == {worker.hostname: []}, "a worker without a task")
        return task

    silent = run_one()
    assert control.enable_events(**of_worker, reply=True)
    task = run_one()
    seen.wait_for("task-succeeded", task)
    assert seen.types(task) == WAITED
    assert control.disable_events(**of_worker, reply=True)
    after = run_one()
    assert control.enable_events(**of_worker, reply=True)
    seen.wait_for("task-succeeded", run_one())
    assert [*seen.types(silent), *seen.types(after)] == []


@pytest.mark.thorough
def test_of_tasks_in_a_worker_that_stops(
    client: Throttle, seen: Seen, start_worker: StartWorker, redis_url: str
) -> None:
    """Some wait in the line, some for a process: the next worker does not receive them again."""
    worker = start_worker(APP, redis_url, options=WITH_EVENTS, concurrency=1)
    with paused(client, "waits"):
        busy = monitored.sleeps.delay(2)
        tasks = [monitored.waits.delay() for _ in range(3)]
        seen.wait_for("task-started", busy)
        worker.terminate()
        worker.wait()
        start_worker(APP, redis_url, options=WITH_EVENTS)
        wait_until(lambda: client["gate", "waits"].status().waiting == 3, "3 waiting tasks")
    for task in tasks:
        seen.wait_for("task-succeeded", task)
        assert seen.types(task).count("task-received") == 1


def test_that_cannot_be_sent(
    client: Throttle, seen: Seen, start_worker: StartWorker, redis_url: str
) -> None:
    """Law: never lost. An error changes nothing for the task."""
    worker = start_worker("tests.apps.failing_events", redis_url, options=WITH_EVENTS)
    with paused(client, "waits"):
        waiting = monitored.waits.delay()
        wait_until(lambda: client["gate", "waits"].status().waiting, "a waiting task")
    with paused(client, "inside"):
        inside = monitored.inside.delay()
        wait_until(lambda: client["gate", "inside"].status().waiting, "a waiting task")
    for task in (waiting, inside, monitored.passes.delay()):
        task.get(timeout=30)
        seen.wait_for("task-succeeded", task)
    assert seen.types(waiting) == ["task-started", "task-succeeded"]
    assert "Could not send event throttle-parked" in worker.log()
    assert worker.log().count("succeeded in") == 3


@pytest.mark.thorough
def test_celery_events_dumps_them(
    client: Throttle, start_worker: StartWorker, redis_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = (sys.executable, "-m", "celery", "-A", APP, "events", "--dump")
    dump = Tethered(command, log, {"CELERY_BROKER_URL": redis_url, "PYTHONPATH": str(ROOT)})
    try:
        start_worker(APP, redis_url, options=WITH_EVENTS)
        dump.wait_until(lambda: "heartbeat" in dump.log(), 30)
        with paused(client, "waits"):
            task = monitored.waits.delay()
            dump.wait_until(lambda: "throttle parked: " in dump.log(), 30)
        task.get(timeout=30)
        dump.wait_until(lambda: "task succeeded" in dump.log(), 30)
    finally:
        dump.end()
    [line] = [line for line in dump.log().splitlines() if "throttle parked" in line]
    assert all(text in line for text in ("limit=gate", "key=waits", "position=1", task.id))
