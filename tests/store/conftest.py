"""Servers of every kind, each started once, by the first test that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.servers.cluster import Cluster
from tests.servers.sentinel import Watched
from tests.servers.server import (
    Server,
    assert_nothing_left_behind,
    redis6_command,
    redis_command,
    valkey_command,
)
from tests.servers.tls import SecureServer


@pytest.fixture(autouse=True)
def each_call_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The circuit breaker lets every call pass, so that a recovery is seen at once."""
    monkeypatch.setattr("celery_throttle.store.breaker.RETRY_SECONDS", 0.0)


COMMANDS: dict[str, Callable[[], Path | None]] = {
    "valkey": valkey_command,
    "redis": redis_command,
    "redis6": redis6_command,
}


def command_of(kind: str) -> Path:
    command = COMMANDS[kind]()
    if command is None:
        pytest.skip(f"there is no {kind} here")
    return command


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> Path:
    """Yields each server that is installed."""
    return command_of(request.param)


StartServer = Callable[..., Server]  # takes what Server takes, but no directory


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers, which end with the test."""
    servers: list[Server] = []

    def start(command: Path, *options: str) -> Server:
        directory = tmp_path / f"server{len(servers)}"
        directory.mkdir()
        servers.append(Server(command, directory, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.check_keys()
        server.stop()


@pytest.fixture(scope="session")
def all_watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    command = redis_command() or valkey_command()  # the cluster is of the other one
    watched = Watched(command, tmp_path_factory.mktemp("sentinel"))
    yield watched
    watched.stop()


@pytest.fixture
def watched(all_watched: Watched) -> Iterator[Watched]:
    """An empty master with Sentinels."""
    with all_watched.client() as client:
        client.flushall()
    yield all_watched
    with all_watched.client() as client:
        assert_nothing_left_behind(client)


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(valkey_command(), tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """An empty cluster of three masters and a replica."""
    for node in whole_cluster.masters():
        with node.client() as client:
            client.flushall()
    yield whole_cluster
    with whole_cluster.client() as client:
        assert_nothing_left_behind(client)


@pytest.fixture(scope="session")
def all_secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    server = SecureServer(command_of("redis"), tmp_path_factory.mktemp("tls"))
    yield server
    server.stop()


@pytest.fixture
def secure(all_secure: SecureServer) -> Iterator[SecureServer]:
    """An empty server that requires certificates."""
    with redis.Redis.from_url(all_secure.plain_url) as client:
        client.flushall()
        yield all_secure
        assert_nothing_left_behind(client)
