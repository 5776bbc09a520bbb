"""Pools that grow, shrink, restart and replace their processes while tasks wait in lines."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from tests.apps import stops
from tests.worker.hooks.test_prefork import FOREVER, Stage, stage, until
from tests.workers import QUICK, Worker

__all__ = ["stage"]

pytestmark = pytest.mark.workers


def command(name: str, worker: Worker, **arguments: int) -> Any:
    """Return the reply of a worker, which a busy machine may keep from reading the command soon.

    A worker reads only commands that were sent after it has subscribed to them. With gevent and
    eventlet, that is some time after it says that it is ready.
    """
    control = stops.app.control
    until(lambda: control.ping([worker.hostname], timeout=1, limit=1), "the worker reads commands")
    found: Any = control.broadcast(
        name, arguments, [worker.hostname], reply=True, timeout=100, limit=1
    )
    [reply] = found
    return reply[worker.hostname]


def running(stage: Stage) -> int:
    return len(stage.begun()) - len(stage.ended())


def until_idle(worker: Worker) -> None:
    """Wait until the worker counts its tasks as done: a process is free only some time later."""
    until(
        lambda: command("reserved", worker) == command("active", worker) == [],
        "the worker has no task",
    )


def run_plain_task(stage: Stage, worker: Worker, number: int) -> None:
    stage.send(stops.plain, range(number, number + 1))
    until(lambda: number in stage.ended(), "a task without limits ran")
    until_idle(worker)


@pytest.mark.pools("prefork", "gevent", "eventlet")
def test_autoscale_starts_processes_for_tasks_in_lines(stage: Stage) -> None:
    """Not with threads and solo: Celery cannot let these grow."""
    stage.worker(options=(*QUICK, "--autoscale=4,1"))
    stage.line_up(stops.early, "open", range(12), FOREVER)
    stage.open("open")
    until(lambda: running(stage) == 4, "four tasks run")
    time.sleep(0.3)
    assert running(stage) == 4
    stage.end(*range(12))
    until(lambda: len(stage.ended()) == 12, "all tasks ran")
    until(stage.nothing_is_held, "all is given back")
    assert Counter(stage.begun()) == Counter(range(12))


@pytest.mark.thorough
@pytest.mark.pools("prefork", "gevent")
def test_autoscale_ignores_tasks_in_lines_until_their_limit_allows_them(stage: Stage) -> None:
    stage.limiter["quota"].try_acquire(100)
    # Celery's loop for gevent looks for new messages every two seconds once it has its prefetch.
    first = stage.worker(size=1, options=(*QUICK, "--prefetch-multiplier", "100"))
    stage.send(stops.hourly, range(200), FOREVER)
    until(lambda: stage.waiting() == 200, "all tasks wait in their line")
    first.terminate()
    first.wait()
    worker = stage.worker(options=(*QUICK, "--autoscale=4,1"))
    for number in range(200, 205):
        run_plain_task(stage, worker, number)
    assert "Scaling up" not in worker.log()
    stage.open("quota")
    until(lambda: running(stage) == 4, "four tasks run")
    assert worker.log().count("Scaling up 1 processes") == 3
    stage.end(*range(200))
    until(lambda: len(stage.ended()) == 105, "the quota is used up")
    assert stage.waiting() == 100


@pytest.mark.pools("prefork", "gevent", "eventlet")
def test_a_pool_that_is_grown_and_shrunk(stage: Stage) -> None:
    worker = stage.worker(size=1)
    stage.line_up(stops.slot_of_nine, "nine", range(8), FOREVER)
    stage.open("nine")
    until(lambda: running(stage) == 1, "one task runs")
    assert "ok" in command("pool_grow", worker, n=2)
    until(lambda: running(stage) == 3, "three tasks run")
    time.sleep(0.3)
    assert stage.held("nine") == 3  # none has its slot before there is a process for it
    stage.end(*stage.begun())
    until(lambda: len(stage.ended()) == 3 and running(stage) == 3, "the next three run")
    first = set(stage.begun())
    stage.end(*sorted(first)[3:5])
    stage.end(*range(8))
    until(lambda: len(stage.ended()) == 8, "all tasks ran")
    until_idle(worker)  # Celery ends no process that has a task
    assert "ok" in command("pool_shrink", worker, n=2)
    stage.line_up(stops.slot_of_nine, "nine", range(10, 14), FOREVER)
    stage.open("nine")
    until(lambda: running(stage) == 1, "one task runs")
    time.sleep(0.3)
    assert (running(stage), stage.held("nine")) == (1, 1)
    stage.end(*range(10, 14))
    until(lambda: len(stage.ended()) == 12, "all tasks ran")
    until(stage.nothing_is_held, "all is given back")


@pytest.mark.thorough
@pytest.mark.pools("prefork")
@pytest.mark.parametrize("how", ["replaced", "restarted"])
def test_processes_that_are_replaced(stage: Stage, how: str) -> None:
    """Only prefork has any."""
    options = ("--max-tasks-per-child=1",) if how == "replaced" else ()
    worker = stage.worker(size=2, options=(*QUICK, *options))
    tasks = range(20)
    stage.line_up(stops.slot_late, "two", tasks, 0.05)
    stage.open("two")
    if how == "restarted":
        until(lambda: len(stage.begun()) > 5, "the line moves")
        assert "ok" in command("pool_restart", worker)
    until(lambda: len(stage.ended()) == len(tasks), "all tasks ran")
    assert Counter(stage.begun()) == Counter(tasks)
    until(stage.nothing_is_held, "all is given back")
