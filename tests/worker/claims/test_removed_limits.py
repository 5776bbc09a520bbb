"""Limits that were removed from the code: tasks that wait for them are still served."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle import Limiter
from tests.servers.server import free_port
from tests.worker.test_deploys import Deploys
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers


@pytest.fixture
def deploys(redis_url: str, start_worker: StartWorker) -> Deploys:
    return Deploys(redis_url, start_worker)


def wait_in_line(deploys: Deploys, task: str, count: int, limit: str = "api") -> None:
    """Let the earlier code leave tasks in a line."""
    deploys.limiter.register()
    deploys.limiter[limit].pause(3600)
    old = deploys.worker("old")
    deploys.send(task, range(count))
    deploys.until(lambda: deploys.waiting() == count, "all wait")
    deploys.stop(old)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("version", "known"), [("none", True), ("none", False), ("bare", True)], ids=str
)
def test_tasks_that_wait_at_a_limit_they_have_no_more(
    deploys: Deploys,
    version: str,
    known: bool,  # noqa: FBT001  # whether the server still knows the limit
) -> None:
    wait_in_line(deploys, "kept", 10)
    if not known:
        Limiter(deploys.url)["api"].undefine()
    worker = deploys.worker(version)
    deploys.send("kept", [100])  # it has no limit, so it does not wait
    deploys.until_ran("kept", 1)
    if known:
        assert deploys.runs("kept") == [(100, version)]
        deploys.limiter["api"].reset()
    deploys.until_ran("kept", 11)
    numbers = sorted(number for number, _ in deploys.runs("kept"))
    assert numbers == [*range(10), 100]
    deploys.until(lambda: deploys.waiting() == 0, "no task waits")
    deploys.stop(worker)
    assert "WARNING" not in worker.log().partition("ready.")[2]


@pytest.mark.thorough
def test_the_limit_that_the_code_has_no_more_is_kept_for_those_that_wait(deploys: Deploys) -> None:
    wait_in_line(deploys, "kept", 11)
    deploys.worker("none")
    began = time.time()
    deploys.limiter["api"].reset()
    deploys.until_ran("kept", 11)
    assert time.time() - began > 10 / 20 - 0.02  # 20/s


@pytest.mark.thorough
def test_a_worker_says_which_tasks_wait_here_in_vain(deploys: Deploys) -> None:
    wait_in_line(deploys, "changed", 3, "shared")
    deploys.limiter["shared"].reset()
    deploys.limiter["shared"].define("100/s")
    worker = deploys.worker("none")
    deploys.until(lambda: deploys.aside() == 3, "they are set aside")
    told = "Tasks wait for a worker that has code for them, as this one has none: in queue"
    deploys.until(lambda: told in worker.log(), "the worker says so")
    time.sleep(2)  # some heartbeats
    assert worker.log().count(told) == 1
    deploys.stop(worker)
    again = deploys.worker("none")  # it finds the tasks in quarantine
    deploys.until(lambda: f"{told} versions 3 tasks changed" in again.log(), "the worker says so")
    assert "WARNING" in next(line for line in again.log().splitlines() if told in line)
    deploys.worker("bare")
    deploys.until_ran("changed", 3)


# An app with a Throttle and no limits.


def ask_for_nothing(deploys: Deploys) -> int:
    stats: Any = deploys.redis.info("commandstats")
    return sum(int(about["calls"]) for name, about in stats.items() if "eval" in name)


@pytest.mark.thorough
def test_an_idle_worker_without_limits_makes_a_call_a_second(deploys: Deploys) -> None:
    deploys.worker("none")
    deploys.redis.config_resetstat()
    deploys.until(lambda: ask_for_nothing(deploys) >= 5, "it has started and looks for lines")
    began = time.monotonic()
    deploys.redis.config_resetstat()
    time.sleep(3)
    calls = ask_for_nothing(deploys)
    seconds = time.monotonic() - began
    heartbeat = 2 / 3  # seconds between two: a third of the lease
    assert calls <= 3 + seconds * (1 + 1 / heartbeat)


@pytest.fixture(params=["refuses", "is silent"])
def unreachable(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "refuses":
        yield f"redis://user:secret@127.0.0.1:{free_port()}/0"
        return
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        yield f"redis://user:secret@127.0.0.1:{silent.getsockname()[1]}/0"


@pytest.mark.thorough
def test_a_worker_without_limits_whose_server_is_out(deploys: Deploys, unreachable: str) -> None:
    env = {"VERSION": "none", "THROTTLE_URL": unreachable}
    with Worker("tests.apps.versions", deploys.url, env=env) as worker:
        deploys.send("kept", range(3))
        deploys.until_ran("kept", 3)
        told = "No task leaves its line until the server is back: the server at redis://127"
        deploys.until(lambda: told in worker.log(), "it is said once")
        worker.terminate()
        worker.wait()
        log = worker.log()
    assert log.count(told) == 1
    assert "ERROR" not in log
    assert "WARNING" not in log
    assert "secret" not in log


@pytest.mark.thorough
def test_an_app_without_limits_and_without_a_server(start_worker: StartWorker) -> None:
    worker = start_worker("tests.apps.shared:idle", "memory://")
    worker.terminate()
    assert worker.wait() == 0
    log = worker.log()
    assert "ERROR" not in log
    assert "Limits of the code" not in log
