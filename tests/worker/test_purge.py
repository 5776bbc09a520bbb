"""Celery's own purges reach what waits in lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.control import Control
from kombu import Queue

from celery_throttle import Limiter, StoreUnavailableError, Throttle
from tests.apps import apart
from tests.programs import ROOT
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

TASKS = 1200


class Site:
    """Tasks that wait in lines, and the commands of the app."""

    def __init__(self, broker: str, store: str, start_worker: StartWorker) -> None:
        self.broker, self.store, self._start = broker, store, start_worker
        self.client: Any = redis.Redis.from_url(store)
        self.limiter = Limiter(store, {"api": "100/s"})
        self.limiter.register()
        self.limiter["api"].pause(3600)
        self.env = os.environ | {
            "CELERY_BROKER_URL": broker,
            "THROTTLE_URL": store,
            "APART_NAME": "one",
            "PYTHONPATH": str(ROOT),
        }

    def park(self, count: int) -> None:
        worker = self._start("tests.apps.apart", self.broker, env=self.env)
        with apart.make_app(self.broker) as app:
            for number in range(count):
                app.send_task("call", (number,))
            wait_until(lambda: self.waiting() == count, "all wait")
            worker.terminate()
            worker.wait()

    def waiting(self) -> int:
        return sum(self.client.hlen(key) for key in self.client.keys("*:messages:*"))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.apps.apart", *command],
            env=self.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def assert_nothing_is_left(self) -> None:
        assert self.client.keys("{throttle}:*line*:*") == []
        left = {key.decode() for key in self.client.keys("{throttle}*")}
        of_limits = {"{throttle}:limits", "{throttle}:layers", "{throttle}:names"}
        assert {key for key in left if self.client.pttl(key) == -1} <= of_limits


@pytest.fixture
def site(redis_url: str, start_worker: StartWorker) -> Site:
    return Site(redis_url, redis_url, start_worker)


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    """The app of these workers, in this process."""
    app = apart.make_app(redis_url)
    Throttle(app, {"api": "100/s"}, url=redis_url)
    yield app
    app.close()


def test_the_command(site: Site) -> None:
    site.park(TASKS)
    with apart.make_app(site.broker) as app:
        for number in range(3):
            app.send_task("call", (number,))
    done = site.run("purge", "--force")
    assert done.stdout == f"Purged {TASKS + 3} messages from 1 known task queue.\n", done.stderr
    site.assert_nothing_is_left()
    done = site.run("purge", "--force")
    assert done.stdout == "No messages purged from 1 queue.\n"


@pytest.mark.thorough
def test_the_command_for_some_queues(site: Site) -> None:
    site.park(5)
    assert "No messages purged" in site.run("purge", "--force", "-Q", "other").stdout
    assert site.run("purge", "--force", "-X", "celery").stdout == ""
    assert site.waiting() == 5
    assert "Purged 5 messages" in site.run("purge", "--force", "-Q", "celery,other").stdout
    site.assert_nothing_is_left()


def test_the_command_for_one_queue_of_the_broker(site: Site) -> None:
    site.park(5)
    assert "5" in site.run("amqp", "queue.purge", "celery").stdout
    site.assert_nothing_is_left()


@pytest.mark.rabbitmq
def test_queues_of_rabbitmq(rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> None:
    site = Site(rabbitmq_url, redis_url, start_worker)
    site.park(5)
    done = site.run("purge", "--force", "-Q", "celery")
    assert "Purged 5 messages" in done.stdout, done.stderr
    site.assert_nothing_is_left()


@pytest.mark.thorough
def test_a_worker_that_purges_when_it_starts(site: Site, start_worker: StartWorker) -> None:
    site.park(5)
    worker = start_worker("tests.apps.apart", site.broker, env=site.env, options=["--purge"])
    assert "purge: Erased 5 messages from the queue." in worker.log()
    site.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["purge", "discard_all"])
def test_control(site: Site, app: Celery, name: str) -> None:
    site.park(5)
    app.send_task("call", (1,))
    assert getattr(app.control, name)() == 6
    site.assert_nothing_is_left()
    assert app.control.purge() == 0


class OwnControl(Control):
    """As users have them."""

    def purge(self, connection: Any = None) -> int:
        return int(super().purge(connection))


def test_a_control_class_of_ones_own(site: Site) -> None:
    site.park(5)
    app: Any = apart.make_app(site.broker)
    with app:
        app.control_cls = OwnControl
        Throttle(app, {}, url=site.store)
        assert isinstance(app.control, OwnControl)
        assert app.control.purge() == 5


def test_other_queues_are_left_alone(site: Site, app: Any) -> None:
    site.park(5)
    app.conf.task_queues = [Queue("other")]
    assert app.control.purge() == 0
    with app.connection_for_write(f"{site.broker.rpartition('/')[0]}/3") as connection:
        connection.default_channel.queue_purge("celery")
    assert site.waiting() == 5


def test_without_a_server_of_limits_it_is_as_in_celery() -> None:
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        Throttle(app, {"api": "1/h"})
        app.control.purge()  # tests of one process share this broker
        app.send_task("call")
        assert app.control.purge() == 1


def test_a_server_that_cannot_be_reached(own_server: Server, redis_url: str) -> None:
    with apart.make_app(redis_url) as app:
        Throttle(app, {}, url=own_server.url)
        own_server.stop()
        with pytest.raises(StoreUnavailableError):
            app.control.purge()
