"""A server with a Unix socket."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.store.client import Store
from tests.ends import MakeEnd
from tests.servers.server import valkey_command
from tests.store.conftest import StartServer
from tests.store.listening import PING, listening
from tests.store.queue import Queue
from tests.workers import StartWorker


@pytest.fixture
def path(start_server: StartServer, tmp_path: Path) -> str:
    path = str(tmp_path / "socket")
    start_server(valkey_command(), "--unixsocket", path)
    return path


@pytest.mark.thorough
def test_a_socket(path: str, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(f"unix://{path}?db=2", {"api": "1/h burst 100"}))
    assert [limiter["api"].try_acquire().remaining for _ in range(3)] == [99, 98, 97]
    with redis.Redis(unix_socket_path=path, db=2) as client:
        assert client.exists("{throttle}:state:api")


def test_a_sleeping_worker_is_woken(path: str) -> None:
    store = Store(f"unix://{path}")
    store.run(PING)
    with listening(store) as listener, redis.Redis(unix_socket_path=path) as client:
        listener.hears(client)


@pytest.mark.workers
def test_tasks_wait_where_their_broker_is(
    path: str, redis_url: str, start_worker: StartWorker
) -> None:
    """throttle_url is not set."""
    broker = f"redis+socket://{path}?virtual_host=1"
    queue = Queue(broker, f"unix://{path}?db=1", redis_url, told=False)
    start_worker("tests.apps.stores", broker, env=queue.env)
    queue.tasks_wait(8)
    queue.tasks_run()
    with redis.Redis(unix_socket_path=path, db=1) as client:
        assert client.exists("{throttle}:limits")
