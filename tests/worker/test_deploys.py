"""Workers of two versions of the code side by side, and one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis
from kombu import Connection

from celery_throttle import Limiter
from tests.apps import versions
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

SECONDS = 30

#: Turns all waiting messages into such as a later version might pack.
LATER = """
for _, key in ipairs(redis.call('KEYS', '*:messages:*')) do
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    local entry = cmsgpack.unpack(all[i + 1])
    entry[5] = '9' .. string.sub(entry[5], 2)
    redis.call('HSET', key, all[i], cmsgpack.pack(entry))
  end
end
"""


class Deploys:
    """Sends tasks, starts workers of either version, and reads what ran."""

    def __init__(self, url: str, start_worker: StartWorker) -> None:
        self.url = url
        self._start = start_worker
        self.redis = redis.Redis.from_url(url)
        self.limiter = Limiter(url, versions.LIMITS["new"])

    def worker(self, version: str) -> Worker:
        return self._start("tests.apps.versions", self.url, env={"VERSION": version})

    def stop(self, worker: Worker) -> None:
        worker.terminate()
        worker.wait()

    def send(self, task: str, numbers: Iterable[int]) -> None:
        with Connection(self.url) as connection:
            for number in numbers:
                versions.app.send_task(task, (number,), connection=connection)

    def runs(self, task: str) -> list[tuple[int, str]]:
        found: Any = self.redis.lrange("versions:runs", 0, -1)
        rows = [row.decode().split() for row in found]
        return [(int(number), version) for name, number, version in rows if name == task]

    def until_ran(self, task: str, count: int) -> None:
        self.until(lambda: len(self.runs(task)) >= count, f"{count} runs of {task}")

    def until(self, true: Callable[[], bool], what: str) -> None:
        wait_until(true, what, SECONDS)

    def waiting(self) -> int:
        return sum(self.redis.hlen(key) for key in self.redis.keys("*:messages:*"))

    def aside(self) -> int:
        return int(self.redis.hlen("{throttle}:quarantine"))


@pytest.fixture
def deploys(redis_url: str, start_worker: StartWorker) -> Deploys:
    return Deploys(redis_url, start_worker)


@pytest.mark.thorough
def test_tasks_that_only_the_new_code_knows_are_left_to_it(deploys: Deploys) -> None:
    deploys.limiter.register()
    deploys.limiter["api"].pause(3600)
    new = deploys.worker("new")
    deploys.send("fresh", range(5))
    deploys.send("kept", range(10))
    deploys.until(lambda: deploys.waiting() == 15, "all wait")
    deploys.stop(new)
    old = deploys.worker("old")
    deploys.limiter["api"].reset()
    deploys.until_ran("kept", 10)
    assert sorted(deploys.runs("kept")) == [(number, "old") for number in range(10)]
    deploys.until(lambda: deploys.aside() == 5, "those that nobody knows are set aside")
    assert deploys.runs("fresh") == []
    assert old.log().count("No code here for tasks fresh: left to a worker that has it") == 1
    deploys.worker("new")
    deploys.until_ran("fresh", 5)
    time.sleep(0.3)  # for a second run to show
    assert sorted(deploys.runs("fresh")) == [(number, "new") for number in range(5)]
    assert deploys.aside() == 0


@pytest.mark.thorough
def test_side_by_side_each_runs_what_it_knows(deploys: Deploys) -> None:
    deploys.limiter.register()
    deploys.limiter["api"].pause(3600)
    deploys.worker("new")
    for number in range(20):
        deploys.send("fresh", [number])
        deploys.send("kept", [number])
    # Celery itself throws away what the old worker does not know if it comes from the broker.
    deploys.until(lambda: deploys.waiting() == 40, "all wait")
    deploys.worker("old")
    deploys.limiter["api"].reset()
    deploys.until_ran("kept", 20)
    deploys.until_ran("fresh", 20)
    assert sorted(deploys.runs("fresh")) == [(number, "new") for number in range(20)]
    assert sorted(number for number, _ in deploys.runs("kept")) == list(range(20))


def test_messages_of_a_later_version_are_left_to_code_that_reads_them(deploys: Deploys) -> None:
    worker = deploys.worker("new")
    deploys.limiter["api"].pause(3600)
    deploys.send("kept", range(5))
    deploys.until(lambda: deploys.waiting() == 5, "all wait")
    deploys.redis.eval(LATER, 0)
    deploys.send("kept", range(5, 10))
    deploys.until(lambda: deploys.waiting() == 10, "all wait")
    deploys.limiter["api"].reset()
    deploys.until_ran("kept", 5)
    assert sorted(number for number, _ in deploys.runs("kept")) == list(range(5, 10))
    deploys.until(lambda: deploys.aside() == 5, "those that nobody reads are set aside")
    assert worker.log().count("No code here for messages of version '9'") == 1


@pytest.mark.thorough
def test_the_limits_of_the_worker_that_started_last_are_in_force_for_both(
    deploys: Deploys,
) -> None:
    deploys.worker("old")
    deploys.send("changed", range(10))
    deploys.until(lambda: deploys.waiting() == 9, "all but one wait")
    new = deploys.worker("new")
    deploys.until_ran("changed", 10)  # 1/h has become 100/s, for those that wait, too
    assert "old" in {version for _, version in deploys.runs("changed")}
    deploys.stop(new)
    deploys.worker("old")
    shared = deploys.limiter["shared"]
    deploys.until(lambda: (shared.try_acquire().retry_after or 0) > 60, "the old limit")
