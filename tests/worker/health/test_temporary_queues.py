"""Queues that the broker deletes with their last consumer take their lines with them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.observe.observer import CONSUMED_SECONDS
from celery_throttle.worker.tuning import STATUS_REPORT_SECONDS
from tests.apps import copies
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

#: Seconds after which nobody believes in a queue any more, and some.
GONE = 12 * copies.LEASE + 20

#: Seconds after which the tasks of a queue without a worker are reported, and some.
REPORTED = CONSUMED_SECONDS + STATUS_REPORT_SECONDS + 10


class Site:
    """A broker, a server of limits that lets nothing through, and workers."""

    def __init__(self, broker: str, store: str, start_worker: StartWorker) -> None:
        self._broker, self._store, self._start = broker, store, start_worker
        self.client: Any = redis.Redis.from_url(store)
        self.limiter = Limiter(store, {"api": "100/s"})
        self.limiter.register()
        self.limiter["api"].pause(3600)

    def worker(self, *queues: str) -> Worker:
        env = {"THROTTLE_URL": self._store}
        return self._start("tests.apps.copies", self._broker, queues=queues, env=env)

    def send(self, queue: str, count: int) -> None:
        about = copies.QUEUES[queue]
        with copies.make_app(self._broker) as app, app.connection_for_write() as connection:
            about.exchange(connection.default_channel).declare()
            for number in range(count):
                app.send_task(
                    "call",
                    (number,),
                    exchange=about.exchange.name,
                    routing_key=about.routing_key,
                    connection=connection,
                )

    def until_subscribed(self, patterns: int) -> None:
        """Wait until the worker has subscribed to its copies. On Redis, others are lost."""
        if self._broker == self._store:
            wait_until(lambda: self.client.pubsub_numpat() == patterns, "it has subscribed")

    def waiting(self) -> dict[str, int]:
        """How many tasks wait, by queue; those of copies together by a part of their names."""
        found: dict[str, int] = {}
        for key in self.client.keys("*:messages:*"):
            queue = key.decode().rpartition("/")[2]
            found[queue] = self.client.hlen(key)
        return found

    def until(self, expected: dict[str, int]) -> None:
        wait_until(lambda: self.waiting() == expected, f"{expected} wait, not {self.waiting()}")

    def until_known(self, count: int) -> None:
        """Wait until a worker has said that it consumes so many queues with tasks, that stay."""
        wait_until(lambda: self.client.zcard("{throttle}:consumed") == count, "it has said so")

    def ran(self) -> list[int]:
        return sorted(map(int, self.client.lrange("ran", 0, -1)))


@pytest.fixture
def site(redis_url: str, start_worker: StartWorker) -> Site:
    return Site(redis_url, redis_url, start_worker)


@pytest.fixture
def rabbit_site(rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> Site:
    return Site(rabbitmq_url, redis_url, start_worker)


def assert_copies_are_gone(site: Site) -> None:
    one = site.worker("copies")
    site.until_subscribed(2)  # to copies, and to remote control
    site.send("copies", 5)
    wait_until(lambda: list(site.waiting().values()) == [5], "a copy of each waits")
    one.kill()
    site.until_subscribed(0)
    other = site.worker("copies")
    site.until_subscribed(2)
    site.send("copies", 3)
    wait_until(lambda: sorted(site.waiting().values()) == [3, 5], "copies of the other wait")
    wait_until(lambda: list(site.waiting().values()) == [3], "those of the one are gone", GONE)
    assert int(site.client.get("{throttle}:backlog:api")) == 3
    wait_until(lambda: "its 5 waiting tasks were discarded" in other.log(), "it is said")
    site.limiter["api"].reset()
    wait_until(lambda: len(site.ran()) == 3, "the others ran")
    assert site.ran() == [0, 1, 2]


@pytest.mark.thorough
def test_copies_of_a_redis_broker(site: Site) -> None:
    assert_copies_are_gone(site)


@pytest.mark.rabbitmq
def test_copies_of_a_rabbitmq_broker(rabbit_site: Site) -> None:
    assert_copies_are_gone(rabbit_site)


@pytest.mark.rabbitmq
def test_queues_that_rabbitmq_deletes(rabbit_site: Site) -> None:
    """What a worker had claimed when it was killed is of the queue as well."""
    site = rabbit_site
    one = site.worker("brief", "own", "kept")
    for queue in ("brief", "own", "kept"):
        site.send(queue, 4)
    site.until({"brief": 4, "own": 4, "kept": 4})
    site.until_known(1)
    one.kill()
    other = site.worker("copies")
    wait_until(lambda: site.waiting() == {"kept": 4}, "only what is kept is left", GONE)
    said = "its 4 waiting tasks were discarded"
    wait_until(lambda: other.log().count(said) == 2, "both are said to be gone")
    assert int(site.client.get("{throttle}:backlog:api")) == 4


@pytest.mark.rabbitmq
def test_a_queue_whose_worker_comes_back_soon(rabbit_site: Site) -> None:
    site = rabbit_site
    witness = site.worker("copies")
    one = site.worker("brief")
    site.send("brief", 4)
    site.until({"brief": 4})
    one.kill()
    site.worker("brief")
    time.sleep(12 * copies.LEASE + 4)
    assert site.waiting() == {"brief": 4}
    site.limiter["api"].reset()
    wait_until(lambda: len(site.ran()) == 4, "they ran")
    assert "discarded" not in witness.log()


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_queue_that_the_broker_keeps(site: Site) -> None:
    """On Redis that is so with any queue that is no copy."""
    one = site.worker("brief", "own", "kept")
    for queue in ("brief", "own", "kept"):
        site.send(queue, 4)
    site.until({"brief": 4, "own": 4, "kept": 4})
    site.until_known(3)
    one.kill()
    other = site.worker("copies")
    wait_until(lambda: other.log().count("tasks wait in queue ") >= 3, "all are reported", REPORTED)
    time.sleep(3 * copies.LEASE)  # less than a minute
    for queue in ("brief", "own", "kept"):
        assert other.log().count(f"4 tasks wait in queue {queue}, which no live worker") == 1
    assert site.waiting() == {"brief": 4, "own": 4, "kept": 4}
    site.limiter["api"].reset()
    site.worker("brief", "own", "kept")
    wait_until(lambda: len(site.ran()) == 12, "all ran")


@pytest.mark.thorough
def test_a_clock_that_jumps_forward(site: Site) -> None:
    """All leases run out, and are renewed by those who live."""
    site.worker("copies")
    witness = site.worker("kept")
    site.send("copies", 5)
    wait_until(lambda: list(site.waiting().values()) == [5], "they wait")
    [temporary] = site.client.zrange("{throttle}:temporary", 0, -1)
    for _ in range(3):
        site.client.zadd("{throttle}:temporary", {temporary: 1})
        time.sleep(2 * copies.LEASE)
    assert list(site.waiting().values()) == [5]
    assert "discarded" not in witness.log()
