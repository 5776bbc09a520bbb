"""Many waiting tasks with large messages reach a worker with many free processes."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from tests.apps import hostile
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

COUNT, SIZE = 16, 400_000

#: A call goes on to another task until it has read 1,000,000 bytes.
LARGEST_REPLY = 1_000_000 + 2 * SIZE


@pytest.fixture
def client(own_server: Server) -> Any:
    """A client of a server that records large replies."""
    client: Any = redis.Redis.from_url(own_server.url)
    client.config_set("commandlog-reply-larger-than", LARGEST_REPLY)
    return client


def large_replies(client: Any) -> list[Any]:
    found: list[Any] = client.execute_command("COMMANDLOG", "GET", "-1", "large-reply")
    return [[entry[2], entry[3][:2]] for entry in found]


@pytest.mark.thorough
def test_a_worker_claims_a_few_at_a_time(
    own_server: Server, client: Any, start_worker: StartWorker
) -> None:
    url = own_server.url
    # Not the worker's app: that of this process may be bound to another server already.
    sender = Celery("sender", broker=url, backend=url, set_as_current=False)
    gate = Limiter(url, hostile.LIMITS)["gate", "k"]
    gate.pause(3600)
    start_worker("tests.apps.hostile", url, pool="gevent", concurrency=2 * COUNT)
    arguments = ("k", "x" * SIZE)
    results = [sender.send_task(hostile.limited.name, arguments) for _ in range(COUNT)]
    messages = gate.limiter.keys.queue("redis/0/celery").messages
    wait_until(lambda: client.hlen(messages) == COUNT, "all tasks wait", 100)
    gate.resume()
    assert [result.get(timeout=100) for result in results] == ["ran"] * COUNT
    assert large_replies(client) == []
    sender.close()
