"""Purges discard what waits at the broker and in lines; `celery purge` discards the former only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter, StoreUnavailableError, Throttle
from tests.apps import apart
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

#: More than one call discards.
TASKS = 1200


class Site:
    """An app on a broker, with tasks that wait in lines."""

    def __init__(self, broker: str, store: str, start_worker: StartWorker) -> None:
        self.broker, self.store, self._start = broker, store, start_worker
        self.client: Any = redis.Redis.from_url(store)
        self.app: Any = apart.make_app(broker)
        self.throttle = Throttle(self.app, {"api": "100/s"}, url=store)

    def park(self, count: int) -> None:
        limiter = Limiter(self.store, {"api": "100/s"})
        limiter.register()
        limiter["api"].pause(3600)
        env = {"THROTTLE_URL": self.store, "APART_NAME": "one"}
        worker = self._start("tests.apps.apart", self.broker, env=env)
        self.send(count)
        wait_until(lambda: self.waiting() == count, "all wait")
        worker.terminate()
        worker.wait()

    def send(self, count: int) -> None:
        for number in range(count):
            self.app.send_task("call", (number,))

    def waiting(self) -> int:
        return sum(self.client.hlen(key) for key in self.client.keys("*:messages:*"))

    def assert_nothing_is_left(self) -> None:
        assert self.client.keys("{throttle}:*line*:*") == []
        left = {key.decode() for key in self.client.keys("{throttle}*")}
        of_limits = {"{throttle}:limits", "{throttle}:names"}
        assert {key for key in left if self.client.pttl(key) == -1} <= of_limits


@pytest.fixture
def site(redis_url: str, start_worker: StartWorker) -> Iterator[Site]:
    site = Site(redis_url, redis_url, start_worker)
    yield site
    site.app.close()


def test_messages_and_waiting_tasks_are_discarded(site: Site) -> None:
    site.park(TASKS)
    site.send(3)
    assert site.throttle.purge() == TASKS + 3
    site.assert_nothing_is_left()
    assert site.throttle.purge() == 0


@pytest.mark.thorough
def test_other_queues_are_left_alone(site: Site) -> None:
    site.park(5)
    assert site.throttle.purge("other") == 0
    assert site.waiting() == 5
    assert site.throttle.purge(["celery", "other", "celery"]) == 5
    site.assert_nothing_is_left()


@pytest.mark.thorough
def test_one_queue_by_its_name(site: Site) -> None:
    site.park(5)
    assert site.throttle.purge("celery") == 5
    site.assert_nothing_is_left()


@pytest.mark.thorough
def test_celery_leaves_the_tasks_in_lines_alone(site: Site) -> None:
    site.park(5)
    site.send(1)
    assert site.app.control.purge() == 1
    assert site.waiting() == 5


@pytest.mark.rabbitmq
def test_queues_of_rabbitmq(rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> None:
    site = Site(rabbitmq_url, redis_url, start_worker)
    site.park(5)
    site.send(1)
    assert site.throttle.purge(["unknown", "celery"]) == 6
    site.assert_nothing_is_left()
    site.app.close()


@pytest.mark.parametrize("url", [None, "memory://"])
def test_without_a_limits_server_messages_are_discarded(url: str | None) -> None:
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        throttle = Throttle(app, {"api": "1/h"}, url=url)
        throttle.purge()  # tests of one process share this broker
        app.send_task("call")
        assert throttle.purge() == 1


def test_a_limits_server_that_cannot_be_reached_is_an_error(
    own_server: Server, redis_url: str
) -> None:
    with apart.make_app(redis_url) as app:
        throttle = Throttle(app, {}, url=own_server.url)
        own_server.stop()
        with pytest.raises(StoreUnavailableError):
            throttle.purge()


def test_a_queue_that_may_not_be_purged_is_an_error(own_server: Server) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.acl_setuser(
            "app", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-del"]
        )
    broker = own_server.url.replace("//", "//app:secret@")
    with Celery("shop", broker=broker, set_as_current=False) as app:
        throttle = Throttle(app, {"api": "1/h"}, url="memory://")
        app.send_task("call")
        with pytest.raises(redis.exceptions.NoPermissionError):
            throttle.purge()
