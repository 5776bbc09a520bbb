"""Apps with queues of the same names on different brokers have separate lines on one server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import redis

from celery_throttle import Limiter, Throttle
from tests.apps import apart
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.server import wait_until
from tests.stored import WITHOUT_BROKER, restore
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


def last_ask(client: redis.Redis, queue: str) -> float:
    """When (us) a worker last means to ask for tasks of a queue; 0 if no claim names it."""
    found: Any = client.zrange(f"{{throttle}}:asks:{queue}", -1, -1, withscores=True)
    return float(found[0][1]) if found else 0.0


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


def test_lines_of_earlier_versions_are_taken_over(
    redis_url: str, start_worker: StartWorker
) -> None:
    """Their names tell no broker. What a killed worker held goes back to them."""
    client = redis.Redis.from_url(redis_url)
    restore(client, WITHOUT_BROKER)
    app = Apart("one", redis_url, redis_url, start_worker)
    app.worker()
    app.send(range(100, 110))
    wait_until(lambda: len(app.ran()) >= 35, "all ran")
    assert app.ran() == [*range(25), *range(100, 110)]
    fan_out = Throttle(apart.make_app(redis_url), {}, url=redis_url).fan_out_named("nightly")
    wait_until(lambda: fan_out.progress().complete, "the fan-out is complete")
    wait_until(
        lambda: last_ask(client, "celery") < last_ask(client, "redis/0/celery") - 3_000_000,
        "no claim names the old queue any more",
    )


@pytest.mark.thorough
def test_lines_of_earlier_versions_beside_it_are_served(
    redis_url: str, start_worker: StartWorker
) -> None:
    """While a deploy is under way workers of both versions let tasks wait."""
    app = Apart("one", redis_url, redis_url, start_worker)
    app.worker()
    app.send(range(100, 110))
    wait_until(lambda: len(app.ran()) >= 10, "the new ones ran")
    restore(redis.Redis.from_url(redis_url), WITHOUT_BROKER)
    wait_until(lambda: len(app.ran()) >= 35, "all ran")
    assert app.ran() == [*range(25), *range(100, 110)]


def test_no_task_is_lost_if_workers_are_killed_meanwhile(
    redis_url: str, start_worker: StartWorker
) -> None:
    restore(redis.Redis.from_url(redis_url), WITHOUT_BROKER)
    limiter = Limiter(redis_url, {"api": "100/s"})
    limiter.define("api", "20/s")
    app = Apart("one", redis_url, redis_url, start_worker)
    for count in (5, 12, 25):
        worker = app.worker()
        wait_until(lambda: len(set(app.ran())) >= count, f"{count} ran")  # noqa: B023  # called at once
        worker.kill()
    assert sorted(set(app.ran())) == list(range(25))


@pytest.mark.thorough
def test_older_tasks_of_a_queue_come_first(redis_url: str, start_worker: StartWorker) -> None:
    client = redis.Redis.from_url(redis_url)
    restore(client, WITHOUT_BROKER)
    limiter = Limiter(redis_url, {"api": "100/s"})
    limiter["api"].pause(3600)
    app = Apart("one", redis_url, redis_url, start_worker)
    app.worker(concurrency=1)  # tasks of two processes may overtake each other
    app.send(range(100, 110))
    wait_until(lambda: waiting(redis_url) == 35, "all wait")
    limiter.define("api", "20/s")
    limiter["api"].reset()
    wait_until(lambda: len(app.ran()) >= 35, "all ran")
    ran = client.lrange("ran-by:one", 0, -1)
    assert sorted(map(int, ran[25:])) == list(range(100, 110))
