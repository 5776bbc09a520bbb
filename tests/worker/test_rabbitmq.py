"""RabbitMQ as the broker; the limits are on a server of their own."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult
from kombu import Connection, Exchange, Queue

from celery_throttle import Limiter
from tests.apps import shop
from tests.servers.server import wait_until
from tests.workers import StartWorker

pytestmark = [pytest.mark.rabbitmq, pytest.mark.workers]

SECONDS = 30


class Shop:
    def __init__(self, broker: str, store: str) -> None:
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self.broker = Connection(broker)
        self.redis = redis.Redis.from_url(store)
        self.throttle = Limiter(store, shop.LIMITS)
        shop.connect(store)  # for the results; tasks are sent over a connection of their own
        arguments = {"x-max-priority": 10}
        self.queue = Queue(
            self.name, Exchange(self.name), self.name, queue_arguments=arguments, durable=True
        )
        self.queue(self.broker.default_channel).declare()

    def send(self, task: Any, *args: Any, **options: Any) -> AsyncResult:
        result: AsyncResult = task.apply_async(
            args, connection=self.broker, exchange=self.name, routing_key=self.name, **options
        )
        return result

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.redis.lrange(f"shop:{name}", 0, -1)]

    def until(self, name: str, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.rows(name)) >= count, f"{count} {name}")
        return self.rows(name)

    def ready_messages(self) -> int:
        declared: Any = self.queue(self.broker.default_channel).queue_declare(passive=True)
        return int(declared.message_count)


@pytest.fixture
def client(any_rabbitmq_url: str, redis_url: str, start_worker: StartWorker) -> Iterator[Shop]:
    client = Shop(any_rabbitmq_url, redis_url)
    env = {"THROTTLE_URL": redis_url, "SHOP_QUEUE": client.name}
    start_worker("tests.apps.shop", any_rabbitmq_url, env=env)
    yield client
    client.queue(client.broker.default_channel).delete()
    client.broker.release()


def test_a_line_drains_and_each_task_is_delivered_once(client: Shop) -> None:
    for number in range(60):
        client.send(shop.drain, number)
    runs = client.until("runs", 60)
    time.sleep(0.3)  # for a second delivery to show
    assert sorted(row["number"] for row in client.rows("runs")) == list(range(60))
    throttled = client.rows("throttled")
    assert len({row["id"] for row in throttled}) == len(throttled) > 30
    times = sorted(row["at"] for row in runs)
    assert times[-1] - times[0] > 59 / 50 - 0.2


def test_waiting_tasks_are_acknowledged_and_rejected_ones_come_back(client: Shop) -> None:
    limit = client.throttle["turn", "line"]
    limit.pause(3600)
    sent = [
        client.send(shop.refuse, "line", kwargs={"requeue": True}),
        client.send(shop.turn, "line"),
    ]
    sent += [client.send(shop.turn, "line") for _ in range(28)]  # more than the worker prefetches
    client.until("throttled", 30)
    assert client.ready_messages() == 0
    limit.reset()
    runs = client.until("runs", 31)
    assert [row["id"] for row in runs].count(sent[0].id) == 2
    assert {row["id"] for row in runs} == {result.id for result in sent}
    assert sent[0].get(timeout=SECONDS) == "done"


def test_a_higher_priority_is_served_first(client: Shop) -> None:
    limit = client.throttle["turn", "line"]
    limit.pause(3600)
    sent = []
    for count, priority in enumerate((0, 5, 9, None, 5), start=1):
        result = client.send(shop.turn, "line", priority=priority)
        client.until("throttled", count)
        sent.append((priority or 0, result.id))
    limit.reset()
    client.until("runs", len(sent))
    ordered = [task_id for _, task_id in sorted(sent, key=lambda one: -one[0])]
    assert [row["id"] for row in client.rows("released")] == ordered


def test_a_task_of_its_own_message(client: Shop) -> None:
    limit = client.throttle["gate", "line"]
    limit.pause(3600)
    headers = {"tenant": "ünï", "deep": {"a": [1, None, 2.5]}}
    twin = client.send(shop.plain_look, "line", b"\xff", headers=headers, priority=4)
    result = client.send(shop.look, "line", b"\xff", headers=headers, priority=4)
    client.until("throttled", 1)
    limit.reset()
    expected, seen = (one.get(timeout=SECONDS) for one in (twin, result))
    for key in ("args", "kwargs", "headers", "delivery_info", "retries", "expires", "timelimit"):
        assert seen["request"].get(key) == expected["request"].get(key), key
    assert seen["value"] == b"\xff"
    assert seen["request"]["tenant"] == "ünï"


def test_a_task_of_a_queue_that_is_consumed_no_more_joins_a_line_of_that_queue(
    any_rabbitmq_url: str, redis_url: str, start_worker: StartWorker
) -> None:
    """Its message was prefetched. Workers of another queue may not be able to run it."""
    client = Shop(any_rabbitmq_url, redis_url)
    env = {"THROTTLE_URL": redis_url, "SHOP_QUEUE": client.name}
    queues = [client.name, "other"]
    worker = start_worker(
        "tests.apps.shop", any_rabbitmq_url, queues=queues, concurrency=1, env=env
    )
    client.throttle["turn", "line"].pause(None)
    held = client.send(shop.stay, "held")
    client.until("runs", 1)
    client.send(shop.turn, "line")
    wait_until(lambda: worker.log().count(" received") == 2, "both are received")
    with Celery(broker=any_rabbitmq_url, set_as_current=False) as app:
        app.control.cancel_consumer(client.name, reply=True, destination=[worker.hostname])
    client.redis.lpush(f"shop:leave:{held}", "now")
    client.until("throttled", 1)
    waiting = client.throttle["turn", "line"].status().queues
    assert [queue.name.rpartition("/")[2] for queue in waiting] == [client.name]
    client.queue(client.broker.default_channel).delete()
    client.broker.release()
