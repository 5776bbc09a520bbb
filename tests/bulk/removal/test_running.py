"""Waiting tasks are taken away while workers run, park and claim, and one of them is killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue

from celery_throttle import Throttle
from celery_throttle.bulk.removal.counts import Removal
from tests.apps.removal import LEASE, LIMITS
from tests.servers.server import wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers


class Fleet:
    """Two workers, an app in this process that sends to them, and where each task is."""

    def __init__(self, broker: str, store: str, start_worker: StartWorker) -> None:
        self.client: Any = redis.Redis.from_url(store)
        self.app: Any = Celery("removal", broker=broker, backend=store, set_as_current=False)
        backend: Any = self.app.backend
        backend.on_task_call = lambda *_: None  # nobody waits for results
        self.throttle = Throttle(self.app, LIMITS, url=store, lease=LEASE)

        @self.app.task(name="call", throttle=["api", "tenant:{tenant}"], shared=False, lazy=False)
        def call(tenant: int) -> None: ...

        self.throttle.register()
        self.throttle["api"].define("20/s")  # on a busy machine, too, more are removed than run
        self.throttle["api"].pause(3600)
        start = partial(start_worker, "tests.apps.removal", broker, env={"THROTTLE_URL": store})
        self.workers: list[Worker] = [start(wait=False), start()]
        self.held: set[str] = set()  #: what the killed worker had
        self.prefetched = 2 * 4  #: messages that a worker has from the broker at most

    def close(self) -> None:
        self.client.close()
        self.throttle.store.close()
        self.app.close()

    def send(self, count: int) -> set[str]:
        """Send tasks and wait until all of them wait in lines, some 50 in each."""
        tenants = max(1, count // 50)
        with self.app.producer_pool.acquire(block=True) as producer:
            sent = {
                self.app.send_task("call", (n % tenants,), producer=producer).id
                for n in range(count)
            }
        wait_until(lambda: len(self.in_lines()) == count, "all tasks wait", 600)
        return sent

    def in_lines(self) -> list[str]:
        keys = self.client.keys("{throttle}:messages:*")
        return [task_id.decode() for key in keys for task_id in self.client.hkeys(key)]

    def claimed(self, worker: str = "") -> list[str]:
        """Return the tasks that a worker has claimed."""
        count = """
            local ids = {}
            for _, claim in ipairs(redis.call('HVALS', KEYS[1])) do
                ids[#ids + 1] = cmsgpack.unpack(claim)[3]
            end
            return ids
        """
        keys = self.client.keys(f"{{throttle}}:claims:*{worker}*")
        return [task_id.decode() for key in keys for task_id in self.client.eval(count, 1, key)]

    def unacknowledged(self) -> list[str]:
        """Return the tasks that Redis has delivered, as a broker."""
        rows = self.client.hvals("unacked")
        return [json.loads(row)[0]["headers"]["id"] for row in rows]

    def at_broker(self, queue: str) -> list[str]:
        with self.app.connection_for_read() as connection:
            bound = Queue(queue, no_declare=True)(connection.default_channel)
            messages = list(iter(partial(bound.get, accept=["json"]), None))
            for message in messages:
                message.ack()
        return [message.headers["id"] for message in messages]

    def revoked(self) -> list[str]:
        keys = self.client.keys("celery-task-meta-*")
        return [
            meta["task_id"]
            for start in range(0, len(keys), 1000)
            for meta in map(json.loads, self.client.mget(keys[start : start + 1000]))
            if meta["status"] == "REVOKED"
        ]

    def started(self) -> list[str]:
        return [task_id.decode() for task_id in self.client.lrange("starts", 0, -1)]

    def kill_one(self) -> None:
        """Kill a worker. What it held may be delivered, and run, twice."""
        killed = self.workers.pop(0)
        killed.kill()
        killed.wait()
        self.held = {*self.claimed(killed.hostname), *self.unacknowledged()}

    def remove(self, removal: Callable[..., Removal], **options: Any) -> tuple[Removal, float]:
        """Remove tasks while workers run; kill one of them once the first tasks are removed.

        Not half way: the workers may run more than half of the tasks themselves.
        """

        def progress(_done: int, _total: int) -> None:
            if len(self.workers) > 1:
                self.kill_one()

        self.throttle["api"].resume()
        wait_until(self.started, "workers run tasks")
        began = time.monotonic()
        removed = removal(progress=progress, **options)
        seconds = time.monotonic() - began
        assert len(self.workers) == 1
        return removed, seconds

    def stop(self) -> None:
        """Let the other worker end what it runs."""
        for worker in self.workers:
            worker.terminate()
            assert worker.wait(60) == 0

    def assert_each_is_in_one_place(
        self, sent: set[str], popped: int = 0, **places: list[str]
    ) -> None:
        """Assert that each task is somewhere, and only what the killed worker held is twice.

        ``popped``: how many messages a consumer may have popped from Redis, and not noted yet as
        unacknowledged, when it was killed. Celery loses these, whoever sent them.
        """
        places |= {"line": self.in_lines(), "claim": self.claimed(), "ran": self.started()}
        found = Counter(task_id for ids in places.values() for task_id in ids)
        print({place: len(ids) for place, ids in places.items()}, f"{len(self.held)} held")
        assert set(found) <= sent
        assert len(sent - set(found)) <= popped
        twice = {task_id for task_id, number in found.items() if number > 1}
        assert twice <= self.held, f"twice: {len(twice - self.held)}"


@pytest.fixture
def fleet(redis_url: str, start_worker: StartWorker) -> Iterator[Fleet]:
    fleet = Fleet(redis_url, redis_url, start_worker)
    yield fleet
    fleet.close()


SIZES = [1000, pytest.param(50_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]


@pytest.mark.parametrize("count", SIZES)
def test_a_drain(fleet: Fleet, count: int) -> None:
    sent = fleet.send(count)
    removal, seconds = fleet.remove(fleet.throttle.drain_all)
    print(f"{removal} in {seconds:.1f} s: {removal.removed / seconds:.0f} tasks per second")
    assert removal.removed > count / 2
    assert removal.failed == 0
    fleet.stop()
    unacknowledged = fleet.unacknowledged()
    fleet.assert_each_is_in_one_place(
        sent, 1, broker=fleet.at_broker("celery"), unacknowledged=unacknowledged
    )


@pytest.mark.thorough
@pytest.mark.parametrize("count", SIZES)
def test_a_move(fleet: Fleet, count: int) -> None:
    sent = fleet.send(count)
    removal, seconds = fleet.remove(fleet.throttle["api"].move, queue="spare")
    print(f"{removal} in {seconds:.1f} s: {removal.removed / seconds:.0f} tasks per second")
    wait_until(lambda: not fleet.in_lines() and not fleet.claimed(), "the rest has run")
    fleet.stop()
    moved = fleet.at_broker("spare")
    assert len(moved) == removal.removed > count / 2
    fleet.assert_each_is_in_one_place(sent, moved=moved)


@pytest.mark.thorough
@pytest.mark.parametrize("count", SIZES)
def test_a_drop(fleet: Fleet, count: int) -> None:
    sent = fleet.send(count)
    removal, seconds = fleet.remove(fleet.throttle["api"].drop)
    print(f"{removal} in {seconds:.1f} s: {removal.removed / seconds:.0f} tasks per second")
    wait_until(lambda: not fleet.in_lines() and not fleet.claimed(), "the rest has run")
    fleet.stop()
    revoked = fleet.revoked()
    assert len(revoked) == removal.removed > count / 2
    fleet.assert_each_is_in_one_place(sent, revoked=revoked)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("count", SIZES)
def test_a_drain_to_rabbitmq(
    rabbitmq_url: str, redis_url: str, start_worker: StartWorker, count: int
) -> None:
    """What the killed worker had not acknowledged is delivered again, and none is lost."""
    fleet = Fleet(rabbitmq_url, redis_url, start_worker)
    sent = fleet.send(count)
    removal, seconds = fleet.remove(fleet.throttle.drain_all)
    print(f"{removal} in {seconds:.1f} s: {removal.removed / seconds:.0f} tasks per second")
    assert removal.removed > count / 2
    fleet.stop()
    found = Counter(fleet.at_broker("celery"))
    found.update([*fleet.in_lines(), *fleet.claimed(), *fleet.started()])
    print(f"{sum(found.values()) - len(sent)} twice")
    assert set(found) == sent
    # Those that it had claimed, and those that it was about to park.
    assert sum(found.values()) - len(sent) <= len(fleet.held) + fleet.prefetched
    fleet.close()
