"""The fixtures of other tests: servers, the check for leftover keys, workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from celery import Celery
from kombu import Connection

from tests.processes import has_ended
from tests.programs import ROOT
from tests.servers.server import Server, assert_nothing_left_behind, valkey_command
from tests.workers import StartWorker, Worker


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """Its leftovers are this file's subject, so they go before `redis_url` looks."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.flushall()


def eventually(holds: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


@pytest.mark.parametrize("_again", range(2))
def test_every_test_gets_an_empty_database(any_server_url: str, _again: int) -> None:
    with redis.Redis.from_url(any_server_url) as client:
        assert client.dbsize() == 0
        client.set("somebody else's", 1)


def test_a_key_without_expiry_is_caught(client: redis.Redis) -> None:
    client.set("{throttle}:state:stripe", 1, ex=10)
    assert_nothing_left_behind(client)
    client.zadd("{throttle}:workers", {"": 1})
    with pytest.raises(AssertionError, match=r"left .* without expiry: {throttle}:workers$"):
        assert_nothing_left_behind(client)


@pytest.mark.parametrize("key", ["{throttle}:limits:more", "{throttle}", "{throttle}limits"])
def test_an_unknown_key_is_caught(client: redis.Redis, key: str) -> None:
    client.set(key, 1, ex=10)
    with pytest.raises(AssertionError, match=f": {key}$"):
        assert_nothing_left_behind(client)


def test_definitions_and_keys_of_others_may_stay(client: redis.Redis) -> None:
    client.hset("{throttle}:limits", "stripe", "100/s")
    client.set("celery", 1)
    assert_nothing_left_behind(client)


@pytest.mark.parametrize("tasks", ["messages:celery", "claims:celery"])
def test_a_line_may_stay_while_it_holds_tasks(client: redis.Redis, tasks: str) -> None:
    line = f"line:{'0a' * 16}"
    client.zadd(f"{{throttle}}:{line}", {"an id": 1})
    client.sadd("{throttle}:waiting-list-index:stripe", "a list")
    client.zadd("{throttle}:workers", {"one": 1})
    names = (line, "waiting-list-index:stripe", "workers")
    left = ", ".join(f"{{throttle}}:{name}" for name in names)
    with pytest.raises(AssertionError, match=f"without expiry: {re.escape(left)}$"):
        assert_nothing_left_behind(client)
    client.hset(f"{{throttle}}:{tasks}", "an id", "a task")
    assert_nothing_left_behind(client)


def test_another_prefix_is_another_product(client: redis.Redis) -> None:
    client.set("{mine}:state:mail", 1)
    assert_nothing_left_behind(client)
    with pytest.raises(AssertionError, match="mail"):
        assert_nothing_left_behind(client, prefix="{mine}")


def test_a_server_comes_back_at_its_address(tmp_path: Path) -> None:
    server = Server(valkey_command(), tmp_path)
    with redis.Redis.from_url(server.url) as client:
        client.set("kept", "no")
        server.stop()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert client.get("kept") is None
    server.stop()


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from tests.servers.server import *; import time;"
        "server = Server(valkey_command(), Path('.'));"
        "print(server.url, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().decode().strip()
        with redis.Redis.from_url(url) as client:
            server = psutil.Process(client.info("server")["process_id"])
        parent.kill()
    assert eventually(lambda: has_ended(server))


@pytest.mark.rabbitmq
def test_rabbitmq_carries_a_message(rabbitmq_url: str) -> None:
    with Connection(rabbitmq_url) as connection, connection.SimpleBuffer("servers") as queue:
        queue.put("hello")
        assert queue.get(timeout=60).payload == "hello"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def send_note(broker_url: str, notes: Path, line: str) -> None:
    with Celery(broker=broker_url, set_as_current=False) as app:
        app.send_task("tests.apps.plain.note", (str(notes), line))


@pytest.mark.workers
@pytest.mark.parametrize("loglevel", ["INFO", "WARNING"])
def test_a_ready_worker_works_until_told_to_end(
    start_worker: StartWorker, redis_url: str, notes: Path, loglevel: str
) -> None:
    # Celery's prefork pool does not always end when it is told to.
    worker = start_worker("tests.apps.plain", redis_url, loglevel=loglevel, pool="solo")
    send_note(redis_url, notes, "done")
    assert eventually(lambda: notes.exists() and notes.read_text() == "done\n")
    worker.terminate()
    assert worker.wait() == 0


def is_initialized(process: psutil.Process) -> bool:
    """Return whether a process of a pool has run Celery's initializer: it ignores Ctrl-C."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = int(re.findall(r"^SigIgn:\s*(\w+)$", status, re.MULTILINE)[0], 16)
    return bool(ignored >> (signal.SIGINT - 1) & 1)


@pytest.mark.workers
def test_a_killed_worker_takes_its_pool_along(redis_url: str) -> None:
    with Worker("tests.apps.plain", redis_url) as worker:
        pool = psutil.Process(worker.pid).children()
        assert len(pool) == 2
        # Before that, a process does not end with its worker: Celery asks the kernel for it there.
        assert eventually(lambda: all(map(is_initialized, pool)))
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
        assert eventually(lambda: all(map(has_ended, pool)))


@pytest.mark.workers
def test_a_worker_that_cannot_start_shows_why(redis_url: str) -> None:
    worker = Worker("tests.apps.no_such_app", redis_url)
    worker.start()
    with pytest.raises(RuntimeError, match="no_such_app"):
        worker.wait_until_ready()
    worker.close()


@pytest.mark.workers
@pytest.mark.rabbitmq
def test_a_worker_works_with_rabbitmq(
    start_worker: StartWorker, rabbitmq_url: str, notes: Path
) -> None:
    start_worker("tests.apps.plain", rabbitmq_url, pool="threads")
    send_note(rabbitmq_url, notes, "done")
    assert eventually(lambda: notes.exists() and notes.read_text() == "done\n")
