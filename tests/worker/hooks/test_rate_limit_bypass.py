"""Tasks with a limit and Celery's own ``rate_limit``: units are taken when that lets them go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from tests.servers.server import wait_until
from tests.worker.conftest import SIZES
from tests.workers import StartWorker

pytestmark = [pytest.mark.workers, pytest.mark.timeout(180)]

#: Sends so many of the tasks of a worker that has a ``rate_limit``, and gives all its starts.
Run = Callable[[str, int], list[float]]


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """A sender: the worker's own app warns where its tasks are defined."""
    with Celery("rated", broker=redis_url, set_as_current=False) as app:
        app.conf.task_default_queue = "rated"
        yield app


@pytest.fixture
def run(redis_url: str, start_worker: StartWorker, pool: str, app: Celery) -> Iterator[Run]:
    env = {"THROTTLE_URL": redis_url}
    start_worker("tests.apps.rated", redis_url, pool=pool, concurrency=SIZES[pool], env=env)
    with redis.Redis.from_url(redis_url) as client:

        def starts(task: str, count: int) -> list[float]:
            for _ in range(count):
                app.send_task(f"tests.apps.rated.{task}")
            wait_until(lambda: client.llen("rated-starts") >= count, f"{count} starts", 120)
            return sorted(map(float, client.lrange("rated-starts", 0, -1)))

        yield starts
        client.delete("rated-starts")


def fullest_second(starts: list[float]) -> int:
    return max(sum(first <= one <= first + 1 for one in starts) for first in starts)


@pytest.mark.thorough
def test_never_over_where_celery_allows_more(run: Run) -> None:
    """A closed second may hold two admissions at 1/s."""
    assert fullest_second(run("below", 8)) <= 2


@pytest.mark.thorough
@pytest.mark.pools("prefork", "threads")
def test_never_over_where_celery_is_told_later(run: Run, app: Celery) -> None:
    """By ``celery control rate_limit``."""
    run("told_later", 1)
    replies: Any = app.control.rate_limit(
        "tests.apps.rated.told_later", "4/s", reply=True, timeout=10, limit=1
    )
    assert "ok" in next(iter(replies[0].values()))
    assert fullest_second(run("told_later", 8)) <= 2


@pytest.mark.thorough
@pytest.mark.pools("prefork", "solo", "threads")
def test_never_idle_where_celery_allows_less(run: Run) -> None:
    """It lets five a second come to the gate. Three times as long is for a slow machine."""
    starts = run("above", 25)
    assert starts[-1] - starts[0] < 3 * 25 / 5


def test_a_worker_says_once_of_each_task_what_to_write(
    redis_url: str, start_worker: StartWorker
) -> None:
    worker = start_worker("tests.apps.rated", redis_url, env={"THROTTLE_URL": redis_url})
    log = worker.log()
    for task, rate in (("below", "4/s"), ("above", "5/s"), ("routed", "5/s")):
        says = f"task 'tests.apps.rated.{task}' has limits and rate_limit='{rate}', which counts in"
        assert log.count(says) == 1
    assert "told_later" not in log.replace("  . tests.apps.rated.told_later", "")
