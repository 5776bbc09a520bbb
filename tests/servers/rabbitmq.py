"""RabbitMQ, as a private node with a port mapper of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kombu import Connection

from tests.servers.server import free_port
from tests.tether import Tethered

ROOT = Path(__file__).parent.parent.parent

# Debian's command on the PATH is a wrapper that changes user and stays in between.
RABBITMQ_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def rabbitmq_command() -> Path | None:
    if RABBITMQ_SCRIPT.exists():
        return RABBITMQ_SCRIPT
    found = shutil.which("rabbitmq-server")
    return Path(found) if found else None


def rabbitmq4_command() -> Path | None:
    """One beside the machine's own: what `rabbitmq4.sh` made in .venv, or as RABBITMQ_4 says."""
    made = ROOT / ".venv" / "rabbitmq-4" / "rabbitmq-server"
    given = os.environ.get("RABBITMQ_4")
    if given:
        return Path(given)
    return made if made.exists() else None


def version_of(url: str) -> tuple[int, ...]:
    with Connection(url) as connection:
        connection.connect()
        version = connection.connection.server_properties["version"]
    return tuple(int(part) for part in version.split(".")[:2])


class RabbitMQ:
    """Stopped and started again, it has its old address and what it had to keep.

    Args:
        command: see :func:`rabbitmq_command`.
        directory: all its files are there.
        settings: of the application ``rabbit``.
    """

    def __init__(self, command: Path, directory: Path, **settings: int) -> None:
        self._command, self._directory = command, directory
        port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        self._mapper, mapper_port = start_port_mapper(directory)
        self._env = node_environment(directory, port, mapper_port)
        given = " ".join(f"-rabbit {name} {value}" for name, value in settings.items())
        self._env["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += f" {given}"
        self.start()

    def start(self) -> None:
        self._node = Tethered([self._command], self._directory / "rabbitmq.log", self._env)
        self._node.wait_until(lambda: _accepts(self.url), seconds=90)

    def add_virtual_host(self, name: str) -> None:
        """Adds one, unless it is there, of which the guest may do anything."""
        self._control("add_vhost", name)
        self._control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")

    @contextmanager
    def full_queues(self, names: str) -> Iterator[None]:
        """Let the queues whose names match an expression reject each message meanwhile."""
        limit = '{"max-length": 0, "overflow": "reject-publish"}'
        self._control("set_policy", "--apply-to", "queues", "full", names, limit)
        try:
            yield
        finally:
            self._control("clear_policy", "full")

    def _control(self, *command: str) -> None:
        control = self._command.with_name("rabbitmqctl")
        node = ("--node", self._env["RABBITMQ_NODENAME"])
        env = {**os.environ, **self._env}
        subprocess.run([control, *node, *command], env=env, check=True, capture_output=True)

    def stop(self) -> None:
        """Ends it at once, as a crash would."""
        self._node.end()

    def close(self) -> None:
        self._node.end()
        self._mapper.end()


def start_port_mapper(directory: Path) -> tuple[Tethered, int]:
    """Start the mapper of nodes, and return it with its port.

    Started by a node, it would be a daemon that stays.
    """
    port = free_port()
    mapper = Tethered(["epmd", "-port", str(port), "-address", "127.0.0.1"], directory / "epmd.log")
    mapper.wait_until(lambda: listens(port), seconds=60)
    return mapper, port


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def node_environment(directory: Path, port: int, mapper_port: int) -> dict[str, str]:
    """Keeps the node apart from any other on the machine: ports, files, cookie, settings."""
    plugins = directory / "enabled_plugins"
    plugins.write_text("[].\n")
    return {
        "HOME": str(directory),
        "ERL_CRASH_DUMP": str(directory / "crash.dump"),
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
