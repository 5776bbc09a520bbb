"""Servers, started once; clean databases, ends of limiters and workers for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.testing import ManualClock
from tests.ends import MakeEnd, make_ends
from tests.faults.proxy import Proxy
from tests.protocol import START, Make, Protocol, make_protocols
from tests.servers.cluster import Cluster
from tests.servers.rabbitmq import RabbitMQ, rabbitmq4_command, rabbitmq_command, version_of
from tests.servers.server import (
    Server,
    assert_nothing_left_behind,
    redis_command,
    valkey_command,
)
from tests.shards import Scene, make_scene
from tests.sizes import is_left_out
from tests.workers import StartWorker, Worker

collect_ignore = ["smoke"]  # a suite with settings of its own: make smoke


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only a larger suite has; see `tests/sizes.py`."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if is_left_out(item) else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(valkey_command(), tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    command = redis_command()
    if command is None:
        pytest.skip("redis-server is not installed")
    server = Server(command, tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that the test may stop and start."""
    server = Server(valkey_command(), tmp_path)
    yield server
    server.check_keys()
    server.stop()


@pytest.fixture
def proxy(own_server: Server) -> Iterator[Proxy]:
    """The line to `own_server`, which the test may cut."""
    proxy = Proxy(own_server.port)
    yield proxy
    proxy.close()


@pytest.fixture(scope="session")
def server_url(valkey_server: Server) -> str:
    """The embedded Valkey as it is, whatever is in it; most tests want `redis_url`."""
    return valkey_server.url


@pytest.fixture
def redis_url(server_url: str) -> Iterator[str]:
    """An empty database; a test that leaves a key in it without expiry fails."""
    yield from _clean_database(server_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def limiter(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Limiter]:
    """A limiter with the `LIMITS` of the test's module, and with the `clock` if the test has it."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    limiter = Limiter(redis_url, request.module.LIMITS, clock=clock)
    yield limiter
    limiter.store.close()


@pytest.fixture(params=["valkey", "redis"])
def any_server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Like `redis_url`, once on each server: Redis only where it is installed."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    yield from _clean_database(server.url)


def _clean_database(url: str) -> Iterator[str]:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        yield url
        assert_nothing_left_behind(client)


@pytest.fixture(params=["sync", "asyncio"])
def end_of(request: pytest.FixtureRequest) -> Iterator[MakeEnd]:
    """Makes the end of a limiter, once of each kind."""
    yield from make_ends(request.param)


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    command = rabbitmq_command()
    if command is None:
        pytest.skip("rabbitmq-server is not installed")
    node = RabbitMQ(command, tmp_path_factory.mktemp("rabbitmq"))
    yield node
    node.close()


@pytest.fixture(scope="session")
def rabbitmq_url(rabbitmq: RabbitMQ) -> str:
    return rabbitmq.url


@pytest.fixture(scope="session")
def rabbitmq4_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """RabbitMQ 4 or later, which may be the one that is installed."""
    command = rabbitmq4_command()
    if command is None:
        url: str = request.getfixturevalue("rabbitmq_url")
        if version_of(url) < (4,):
            pytest.skip("no RabbitMQ 4; tests/servers/rabbitmq4.sh .venv/rabbitmq-4 makes one")
        yield url
        return
    node = RabbitMQ(command, tmp_path_factory.mktemp("rabbitmq4"))
    yield node.url
    node.close()


@pytest.fixture(params=["rabbitmq", "rabbitmq4"])
def any_rabbitmq_url(request: pytest.FixtureRequest) -> str:
    """Like `rabbitmq_url`, once with the one that is installed and once with RabbitMQ 4."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def start_worker(request: pytest.FixtureRequest) -> Iterator[StartWorker]:
    """Starts workers that end with the test; a test that fails shows the end of their logs.

    Takes what Worker takes, and `wait`: whether to wait until it is ready.
    """
    for name in ("redis_url", "any_server_url"):  # what workers leave is looked at after their end
        if name in request.fixturenames:
            request.getfixturevalue(name)
    workers: list[Worker] = []

    def start(*args: Any, wait: bool = True, **options: Any) -> Worker:
        worker = Worker(*args, **options)
        workers.append(worker)
        worker.start()
        if wait:
            worker.wait_until_ready()
        return worker

    yield start
    for worker in workers:
        print(f"--- {worker.hostname}\n{worker.log()[-4000:]}")
        worker.close()


@pytest.fixture
def lines(redis_url: str) -> Iterator[Protocol]:
    """Lines at a limit that lets a thousand through, without a worker."""
    lines = Protocol(redis_url, {"api": "1/h burst 1000"})
    yield lines
    lines.close()


@pytest.fixture
def make(redis_url: str) -> Iterator[Make]:
    """Makes lines without a worker."""
    yield from make_protocols(redis_url)


@pytest.fixture
def erp_server(tmp_path: Path) -> Iterator[Server]:
    """The server of a second shard."""
    directory = tmp_path / "erp"
    directory.mkdir()
    server = Server(valkey_command(), directory)
    yield server
    server.check_keys()
    server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    directory = tmp_path / "cluster"
    directory.mkdir()
    cluster = Cluster(valkey_command(), directory)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A worker with shards on two servers, for the tests of one module."""
    with make_scene(tmp_path_factory.mktemp("scene")) as scene:
        yield scene
