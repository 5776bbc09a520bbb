"""What Flower and celery-exporter show of tasks with limits.

Each test has a task of its own, as both count by the names of tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_throttle import Throttle
from tests.apps import monitored
from tests.servers.server import wait_until
from tests.worker.events.monitors import Exporter, Flower
from tests.workers import Worker

pytestmark = [pytest.mark.workers, pytest.mark.pools("prefork", "threads")]

COUNT = 10  #: tasks; each of the two workers receives some of them


@dataclass
class Monitors:
    """Sends tasks, and reads what the monitors show of them."""

    throttle: Throttle
    flower: Flower
    exporter: Exporter | None

    @contextmanager
    def paused(self, key: str, seconds: float | None = 3600) -> Iterator[None]:
        handle = self.throttle["gate", key]
        handle.pause(seconds)
        try:
            yield
        finally:
            handle.resume()

    def send(self, task: Any, *args: Any, count: int = COUNT, **options: Any) -> list[AsyncResult]:
        return [task.apply_async(args, **options) for _ in range(count)]

    def states(self, tasks: Sequence[AsyncResult]) -> set[str | None]:
        return {self.flower.task(task.id).get("state") for task in tasks}

    def wait_for_state(self, tasks: Sequence[AsyncResult], state: str) -> None:
        wait_until(lambda: self.states(tasks) == {state}, f"Flower's state {state}")

    def wait_in_line(self, name: str, count: int = COUNT, limit: str = "gate") -> None:
        handle = self.throttle[limit, name]
        wait_until(lambda: handle.status().waiting == count, f"{count} waiting tasks")

    def check(self, name: str, *, started: int, received: int = COUNT, revoked: int = 0) -> None:
        """Check the numbers after the end of all tasks of a name."""
        label = {"task": name}
        found = {
            event: self.flower.total("flower_events_total", type=f"task-{event}", **label)
            for event in ("received", "started")
        }
        assert found == {"received": received, "started": started}
        assert self.flower.prefetched(name) == {}
        if self.exporter is not None:
            exporter = self.exporter
            counts = {"received": received, "started": started, "revoked": revoked}
            wait_until(lambda: exporter.counts(name) == counts, f"counts of {counts}")


@pytest.fixture(scope="module")
def monitors(
    flower: Flower, exporter: Exporter | None, workers: list[Worker], throttle: Throttle
) -> Monitors:
    names = {worker.hostname for worker in workers}
    wait_until(lambda: names <= flower.samples("flower_worker_online").keys(), "Flower knows them")
    if exporter is not None:
        wait_until(lambda: exporter.samples("celery_worker_up"), "celery-exporter reads events")
    return Monitors(throttle, flower, exporter)


def waits(monitors: Monitors, tasks: Sequence[AsyncResult], name: str) -> None:
    """Check what is shown of tasks that wait in their lines."""
    monitors.wait_in_line(name, len(tasks))
    monitors.wait_for_state(tasks, "RECEIVED")
    assert monitors.flower.prefetched(name) == {}


@pytest.mark.thorough
def test_that_pass_at_once(monitors: Monitors) -> None:
    tasks = monitors.send(monitored.passes, count=1)
    monitors.wait_for_state(tasks, "SUCCESS")
    assert all(monitors.flower.task(task.id)["eta"] is None for task in tasks)
    monitors.check("passes", started=1, received=1)


@pytest.mark.thorough
def test_without_limits(monitors: Monitors) -> None:
    tasks = monitors.send(monitored.plain)
    monitors.wait_for_state(tasks, "SUCCESS")
    assert all(monitors.flower.task(task.id)["eta"] is None for task in tasks)
    monitors.check("plain", started=COUNT)


@pytest.mark.thorough
def test_that_wait_run_and_succeed(monitors: Monitors) -> None:
    with monitors.paused("sleeps"):
        tasks = monitors.send(monitored.sleeps, 1)
        waits(monitors, tasks, "sleeps")
    wait_until(lambda: "STARTED" in monitors.states(tasks), "a task that runs")
    monitors.wait_for_state(tasks, "SUCCESS")
    monitors.check("sleeps", started=COUNT)
    runtimes = [monitors.flower.task(task.id)["runtime"] for task in tasks]
    assert all(1 <= runtime < 30 for runtime in runtimes)


@pytest.mark.thorough
def test_the_eta_of_a_task_that_waits_is_its_expected_start(monitors: Monitors) -> None:
    tasks = monitors.send(monitored.hourly, count=3)
    monitors.wait_in_line("hourly", 2, "hour")
    wait_until(lambda: monitors.states(tasks) == {"RECEIVED", "SUCCESS"}, "one task that ran")
    waiting = [task for task in tasks if not task.ready()]
    etas = [datetime.fromisoformat(monitors.flower.task(task.id)["eta"]) for task in waiting]
    hours = [(eta - datetime.now(timezone.utc)).total_seconds() / 3600 for eta in sorted(etas)]
    assert hours == pytest.approx([1, 2], abs=0.1)
    assert monitors.throttle["hour", "hourly"].drop().removed == 2
    monitors.wait_for_state(waiting, "REVOKED")
    monitors.check("hourly", started=1, received=3, revoked=2)


@pytest.mark.thorough
def test_a_pause_without_an_end(monitors: Monitors) -> None:
    with monitors.paused("endless", None):
        [task] = monitors.send(monitored.endless, count=1)
        waits(monitors, [task], "endless")
        shown = monitors.flower.task(task.id)
        eta = datetime.fromisoformat(shown["eta"]).timestamp()
        assert eta == pytest.approx(shown["received"], abs=0.001)
        assert shown["eta"] in monitors.flower.page(task.id)
    monitors.wait_for_state([task], "SUCCESS")
    monitors.check("endless", started=1, received=1)


@pytest.mark.thorough
def test_that_are_revoked_while_they_wait(monitors: Monitors) -> None:
    with monitors.paused("waits"):
        tasks = monitors.send(monitored.waits)
        waits(monitors, tasks, "waits")
        monitored.app.control.revoke([task.id for task in tasks])
        monitors.wait_for_state(tasks, "REVOKED")
    monitors.check("waits", started=0, revoked=COUNT)


@pytest.mark.thorough
def test_that_expire_while_they_wait(monitors: Monitors) -> None:
    expires = datetime.now(timezone.utc) + timedelta(seconds=5)  # in line by then
    with monitors.paused("expires"):
        tasks = monitors.send(monitored.expires, expires=expires)
        waits(monitors, tasks, "expires")
        wait_until(lambda: datetime.now(timezone.utc) > expires, "they have expired")
    monitors.wait_for_state(tasks, "REVOKED")
    monitors.check("expires", started=0, revoked=COUNT)


@pytest.mark.thorough
@pytest.mark.pools("prefork")  # no other pool can end a task that runs
def test_that_are_revoked_while_they_run(monitors: Monitors) -> None:
    with monitors.paused("ended"):
        tasks = monitors.send(monitored.ended, count=2)
        waits(monitors, tasks, "ended")
    monitors.wait_for_state(tasks, "STARTED")
    monitored.app.control.revoke([task.id for task in tasks], terminate=True)
    monitors.wait_for_state(tasks, "REVOKED")
    monitors.check("ended", started=2, received=2, revoked=2)


def test_that_are_retried(monitors: Monitors) -> None:
    with monitors.paused("retries"):
        tasks = monitors.send(monitored.retries)
        waits(monitors, tasks, "retries")
    monitors.wait_for_state(tasks, "SUCCESS")
    monitors.check("retries", started=2 * COUNT, received=2 * COUNT)  # as on plain Celery


@pytest.mark.thorough
def test_that_may_not_wait_so_long(monitors: Monitors) -> None:
    tasks = monitors.send(monitored.late)
    wait_until(lambda: monitors.states(tasks) == {"SUCCESS", "REVOKED"}, "the others are dropped")
    monitors.check("late", started=1, revoked=COUNT - 1)
    tasks = monitors.send(monitored.fails)
    wait_until(lambda: monitors.states(tasks) == {"SUCCESS", "FAILURE"}, "the others fail")
    monitors.check("fails", started=1)


@pytest.mark.thorough
def test_that_meet_a_limit_in_the_body(monitors: Monitors) -> None:
    with monitors.paused("inside"):
        tasks = monitors.send(monitored.inside)
        monitors.wait_in_line("inside")
        monitors.wait_for_state(tasks, "STARTED")  # no state of Celery's fits better
        assert monitors.flower.prefetched("inside") == {}
    monitors.wait_for_state(tasks, "SUCCESS")
    monitors.check("inside", started=2 * COUNT)


@pytest.mark.thorough
def test_that_go_straight_to_their_lines(monitors: Monitors) -> None:
    name = f"fans-{time.time()}"
    with monitors.paused("fans"):
        fan_out = monitors.throttle.fan_out([monitored.fans.si() for _ in range(COUNT)], name)
        monitors.wait_in_line("fans")
    fan_out.wait(timeout=30)
    wait_until(
        lambda: (
            monitors.flower.total("flower_events_total", type="task-succeeded", task="fans")
            == COUNT
        ),
        "their ends",
    )
    monitors.check("fans", started=COUNT)
