"""A task waits in a line of the queue that its message came from, however that queue is bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from tests.apps import routes
from tests.servers.server import wait_until
from tests.workers import QUICK, StartWorker, Worker

pytestmark = pytest.mark.workers

#: Exchange, routing key, and the queues that a message is put into.
ROUTES = [
    ("topic", "a.x", ["a"]),
    ("topic", "b.x.y", ["b"]),
    ("topic", "c.x", ["several"]),
    ("direct", "d", ["several"]),
    ("direct", "e", ["more"]),
]

BOTH = ("topic", "both.both", ["first", "second"])


class Site:
    """A broker with these queues, its workers, and what they ran."""

    def __init__(self, broker: str, store: str, start_worker: StartWorker) -> None:
        self._broker, self._store, self._start = broker, store, start_worker
        self.client: Any = redis.Redis.from_url(store)
        self.limiter = Limiter(store, routes.throttle.limits)
        self.limiter.register()
        self.limiter["api"].pause(3600)
        self.app: Celery = routes.make_app(broker)

    def worker(self, *queues: str) -> Worker:
        return self._start(
            "tests.apps.routes",
            self._broker,
            queues=queues,
            hostname=f"{'-'.join(queues)}@localhost",
            env={"THROTTLE_URL": self._store},
            options=QUICK,
        )

    def send(self, exchange: str, routing_key: str, queues: list[str], task: str = "call") -> None:
        # Not by the app's queues: the exchange is to route it.
        with self.app.connection_for_write() as connection:
            for queue in routes.QUEUES.values():
                queue(connection.default_channel).declare()
        args = (",".join(queues),) if task == "call" else ()
        self.app.send_task(task, args, exchange=exchange, routing_key=routing_key)

    def waiting(self) -> dict[str, int]:
        """How many tasks wait, by queue."""
        found = {key.decode().rpartition("/")[2]: key for key in self.client.keys("*:messages:*")}
        return {queue: self.client.hlen(key) for queue, key in found.items()}

    def backlog(self, limit: str) -> int:
        """How many tasks wait at a limit."""
        return int(self.client.get(f"{{throttle}}:backlog:{limit}") or 0)

    def ran(self) -> list[str]:
        """Which queue a task was sent to, and which worker ran it."""
        return sorted(row.decode() for row in self.client.lrange("ran", 0, -1))

    def run_each_by_a_worker_of_its_queue(self, expected: dict[str, int]) -> None:
        wait_until(lambda: self.waiting() == expected, f"{expected} wait")
        self.limiter["api"].reset()
        for queue in expected:
            self.worker(queue)


@pytest.fixture
def site(redis_url: str, start_worker: StartWorker) -> Iterator[Site]:
    site = Site(redis_url, redis_url, start_worker)
    yield site
    site.app.close()


@pytest.fixture
def rabbit_site(rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> Iterator[Site]:
    site = Site(rabbitmq_url, redis_url, start_worker)
    yield site
    with site.app.connection_for_write() as connection:
        for queue in routes.QUEUES.values():
            queue(connection.default_channel).delete()
    site.app.close()


def assert_each_comes_to_its_queue(site: Site) -> None:
    worker = site.worker("a", "b", "several", "more", "first", "second")
    for route in ROUTES:
        site.send(*route)
    expected = {"a": 1, "b": 1, "several": 2, "more": 1}
    wait_until(lambda: sum(site.waiting().values()) == 5, "all wait")
    worker.terminate()
    worker.wait()
    assert site.waiting() == expected
    site.run_each_by_a_worker_of_its_queue(expected)
    wait_until(lambda: len(site.ran()) == 5, "all ran")
    assert site.ran() == ["a a", "b b", "more more", "several several", "several several"]


@pytest.mark.thorough
def test_a_redis_broker(site: Site) -> None:
    assert_each_comes_to_its_queue(site)


@pytest.mark.rabbitmq
def test_a_rabbitmq_broker(rabbit_site: Site) -> None:
    assert_each_comes_to_its_queue(rabbit_site)


@pytest.mark.thorough
def test_a_copy_for_each_queue(site: Site) -> None:
    worker = site.worker("first", "second")
    site.send(*BOTH)
    expected = {"first": 1, "second": 1}
    wait_until(lambda: sum(site.waiting().values()) == 2, "both copies wait")
    worker.terminate()
    worker.wait()
    site.run_each_by_a_worker_of_its_queue(expected)
    wait_until(lambda: len(site.ran()) == 2, "both copies ran")
    assert site.ran() == ["first,second first", "first,second second"]


@pytest.mark.thorough
def test_queues_that_a_worker_is_told_to_consume(site: Site) -> None:
    worker = site.worker("a")
    site.app.control.add_consumer(
        "b", destination=["a@localhost"], exchange="topic", exchange_type="topic", routing_key="b.#"
    )
    wait_until(lambda: "b" in str(site.app.control.inspect().active_queues()), "it consumes b")
    site.send(*ROUTES[1])
    wait_until(lambda: sum(site.waiting().values()) == 1, "it waits")
    worker.terminate()
    worker.wait()
    site.run_each_by_a_worker_of_its_queue({"b": 1})
    wait_until(lambda: len(site.ran()) == 1, "it ran")
    assert site.ran() == ["b b"]


@pytest.mark.rabbitmq
def test_another_workers_consumer_tags_say_nothing(rabbit_site: Site) -> None:
    """Each worker counts its own: what is `more` to one is `several` to the other."""
    site = rabbit_site
    site.limiter["inner"].pause(3600)
    site.send("direct", "e", ["more"], task="meet")
    first = site.worker("several", "more")
    wait_until(lambda: site.waiting() == {"more": 1}, "it waits")
    first.terminate()
    first.wait()
    site.worker("more", "several")
    site.limiter["api"].reset()
    wait_until(lambda: site.backlog("inner") == 1, "it waits for what it met")
    assert site.waiting() == {"more": 1}
