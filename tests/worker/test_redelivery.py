"""``delivery_info["redelivered"]`` of tasks that come out of a line again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from tests.apps import redelivery
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = [pytest.mark.workers, pytest.mark.pools("prefork", "solo", "threads")]

SECONDS = 30


class Site:
    """Sends tasks so that they wait in their line, and reads how they ran."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self.limiter = Limiter(url, {"api": "100/s"})
        self.limiter.register()
        self._link = redelivery.app.connection_for_write(url)
        redelivery.app.conf.update(broker_url=url, result_backend=url)

    def send(self, task: Any, count: int = 1) -> list[str]:
        return [task.apply_async(connection=self._link).id for _ in range(count)]

    def send_to_line(self, task: Any, count: int = 1) -> list[str]:
        """There has to be a worker, which parks them. They run from now on."""
        self.limiter["api"].pause(3600)
        sent = self.send(task, count)
        messages = f"{{throttle}}:messages:redis/0/{redelivery.QUEUE}"
        wait_until(lambda: self.client.hlen(messages) == count, "all wait in their line", SECONDS)
        self.limiter["api"].reset()
        return sent

    def runs(self, *tasks: str) -> dict[str, list[str]]:
        """Of each task, in order, whether it was redelivered."""
        rows: list[bytes] = self.client.lrange(redelivery.RUNS, 0, -1)  # type: ignore[assignment]  # not async
        found: dict[str, list[str]] = {task: [] for task in tasks}
        for row in rows:
            task, redelivered = row.decode().split()
            found[task].append(redelivered)
        return found

    def until_claims_are_settled(self) -> None:
        wait_until(lambda: not self.client.keys("{throttle}:claims:*"), "all have ended", SECONDS)

    def close(self) -> None:
        self._link.release()
        self.client.delete(redelivery.RUNS)
        self.client.close()


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    site = Site(redis_url)
    yield site
    site.close()


@pytest.fixture
def start(redis_url: str, start_worker: StartWorker, pool: str) -> Callable[[], Worker]:
    return lambda: start_worker("tests.apps.redelivery", redis_url, pool=pool, env={"POOL": pool})


def test_a_rejected_task_is_redelivered(site: Site, start: Callable[[], Worker]) -> None:
    start()
    plain = site.send(redelivery.plain, 3)
    limited = site.send_to_line(redelivery.rejects, 3)
    tasks = *plain, *limited
    twice = ["False", "True"]
    wait_until(lambda: all(len(runs) > 1 for runs in site.runs(*tasks).values()), "two runs each")
    site.until_claims_are_settled()
    assert site.runs(*tasks) == dict.fromkeys(tasks, twice)


def test_a_task_whose_worker_died_is_redelivered(site: Site, start: Callable[[], Worker]) -> None:
    first = start()
    (task,) = site.send_to_line(redelivery.dies)
    first.wait()
    start()
    wait_until(lambda: len(site.runs(task)[task]) > 1, "it runs again", SECONDS)
    site.until_claims_are_settled()
    assert site.runs(task)[task] == ["False", "True"]


@pytest.mark.thorough
def test_a_task_with_a_stored_result_does_not_run_again(
    site: Site, start: Callable[[], Worker]
) -> None:
    first = start()
    (task,) = site.send_to_line(redelivery.succeeds)
    first.wait()
    assert redelivery.app.AsyncResult(task).state == "SUCCESS"
    second = start()
    ignored = f"{task}] Task already completed"
    wait_until(lambda: ignored in second.log() or site.runs(task)[task][1:], "it comes", SECONDS)
    site.until_claims_are_settled()
    assert site.runs(task)[task] == ["False"]
