"""Workers whose limits server is out of memory: no limit is exceeded, and what waits drains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.servers.server import Server, wait_until
from tests.store.queue import Queue
from tests.worker.test_slots import most_at_once, notes, numbers, send
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

#: Seconds; longer than a busy machine keeps a process from renewing its leases.
LEASE = 8


@pytest.fixture
def limits_server(own_server: Server) -> Iterator[Server]:
    """A server of the limits only: the broker and the notes of tasks have memory."""
    yield own_server
    own_server.configure("maxmemory", 0)


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_slots_stay_with_the_tasks_that_hold_them(
    redis_url: str, limits_server: Server, start_worker: StartWorker
) -> None:
    env = {"THROTTLE_URL": limits_server.url, "NOTES_URL": redis_url, "LEASE": f"{LEASE}"}
    for _ in range(2):
        start_worker("tests.apps.slots", redis_url, concurrency=5, env=env)
    send(redis_url, "both", [(number, None) for number in range(10)])
    with redis.Redis.from_url(redis_url) as client, limits_server.client() as limits:
        wait_until(lambda: limits.hlen("{throttle}:messages:redis/0/slots") == 8, "8 tasks wait")
        wait_until(lambda: len(numbers(client, "begin")) == 2, "2 tasks run")
        limits_server.configure("maxmemory", 1)
        lapsed = limits.time()[0] + LEASE + 1
        wait_until(lambda: limits.time()[0] > lapsed, "the leases would have lapsed")
        assert len(numbers(client, "begin")) == 2
        client.set("slots-end", 1)
        wait_until(lambda: len(numbers(client, "end")) == 10, "all tasks have ended")
        assert numbers(client, "begin") == list(range(10))
        assert most_at_once(notes(client), {}) == 2
        client.delete("slots-notes", "slots-end")


@pytest.mark.timeout(180)
def test_a_backlog_drains_while_workers_start_and_stop(
    redis_url: str, limits_server: Server, start_worker: StartWorker
) -> None:
    queue = Queue(redis_url, limits_server.url, redis_url)
    worker = start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.tasks_wait(200)
    limits_server.configure("maxmemory", 1)
    start_worker("tests.apps.stores", redis_url, env=queue.env)
    queue.let_go()
    wait_until(lambda: len(queue.noted("runs")) > 50, "tasks that run")
    worker.terminate()  # its claims go back to their lines
    queue.tasks_run()
