"""Apps with queues of the same names on different brokers have separate lines on one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from tests.apps import apart
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

TASKS = 50


@dataclass
class Apart:
    """One of the apps."""

    name: str
    broker: str
    store: str
    start_worker: StartWorker
    prefix: str = ""

    def worker(self, **options: Any) -> Worker:
        env = {"THROTTLE_URL": self.store, "APART_NAME": self.name, "APART_PREFIX": self.prefix}
        return self.start_worker("tests.apps.apart", self.broker, env=env, **options)

    def send(self, numbers: range) -> None:
        with apart.make_app(self.broker, self.prefix) as app:
            for number in numbers:
                app.send_task("call", (number,))

    def ran(self) -> list[int]:
        with redis.Redis.from_url(self.store) as client:
            found: Any = client.lrange(f"ran-by:{self.name}", 0, -1)
            return sorted(map(int, found))


def waiting(store: str) -> int:
    with redis.Redis.from_url(store) as client:
        return sum(client.hlen(key) for key in client.keys("*:messages:*"))


def stop(worker: Worker) -> None:
    worker.terminate()
    worker.wait()


def assert_apart(one: Apart, other: Apart) -> None:
    """Tasks of one app wait, and a worker of the other has tasks of its own to run."""
    limiter = Limiter(one.store, {"api": "100/s"})
    limiter.register()
    limiter["api"].pause(3600)
    worker = one.worker()
    one.send(range(TASKS))
    wait_until(lambda: waiting(one.store) == TASKS, "all wait")
    stop(worker)
    other.worker()
    limiter["api"].reset()
    other.send(range(1000, 1000 + TASKS))
    wait_until(lambda: len(other.ran()) >= TASKS, "the other app's tasks ran")
    assert other.ran() == list(range(1000, 1000 + TASKS))
    assert waiting(one.store) == TASKS
    one.worker()
    wait_until(lambda: len(one.ran()) >= TASKS, "tasks ran by the app they are of")
    assert one.ran() == list(range(TASKS))
    assert other.ran() == list(range(1000, 1000 + TASKS))


def test_key_prefixes_of_one_redis(redis_url: str, start_worker: StartWorker) -> None:
    one, other = (
        Apart(name, redis_url, redis_url, start_worker, f"{name}:") for name in ("one", "other")
    )
    assert_apart(one, other)


@pytest.mark.thorough
def test_databases_of_one_redis(redis_url: str, start_worker: StartWorker) -> None:
    server = redis_url.rpartition("/")[0]
    one, other = (
        Apart(name, f"{server}/{database}", redis_url, start_worker)
        for name, database in (("one", 1), ("other", 2))
    )
    assert_apart(one, other)


@pytest.mark.rabbitmq
def test_virtual_hosts_of_one_rabbitmq(
    rabbitmq: RabbitMQ, redis_url: str, start_worker: StartWorker
) -> None:
    rabbitmq.add_virtual_host("other")
    one = Apart("one", rabbitmq.url, redis_url, start_worker)
    other = Apart("other", f"{rabbitmq.url.rstrip('/')}/other", redis_url, start_worker)
    assert_apart(one, other)
