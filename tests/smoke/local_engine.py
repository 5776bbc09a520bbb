"""Processes in place of containers, for machines without a Docker engine.

`LocalEngine` has the part of `docker.DockerClient` that pytest-celery and pytest-docker-tools use.
Nothing is isolated: a container is a process with a directory, an image is the program that it
runs, and a published port is the port on which it listens.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from docker.errors import ImageNotFound

from tests.servers.rabbitmq import (
    listens,
    node_environment,
    rabbitmq4_command,
    rabbitmq_command,
    start_port_mapper,
)
from tests.servers.server import free_port, redis_command, valkey_command
from tests.tether import Tethered

ROOT = Path(__file__).parent.parent.parent

#: The id of an image that has no command.
_NOTHING = "scratch"

_SERVERS: dict[str, Callable[[], Path | None]] = {
    "redis-server": redis_command,
    "valkey-server": valkey_command,
    "rabbitmq-server": lambda: rabbitmq4_command() or rabbitmq_command(),
}


class LocalEngine:
    """A client of no engine: `containers`, `images`, `networks` and `volumes` as Docker has them.

    `images.build` finds the environment that `make smoke` has made for a version of Celery.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.containers = SimpleNamespace(run=self._run, create=self._create)
        self.images = SimpleNamespace(build=_find_environment)
        self.networks = SimpleNamespace(create=_network)
        self.volumes = SimpleNamespace(create=self._volume)
        self._mapper: tuple[Tethered, int] | None = None

    def close(self) -> None:
        if self._mapper is not None:
            self._mapper[0].end()

    def mapper_port(self) -> int:
        """The port mapper of all RabbitMQ nodes, started at the first use."""
        if self._mapper is None:
            self._mapper = start_port_mapper(self.directory)
        return self._mapper[1]

    def _run(self, image: str, **options: Any) -> LocalContainer:
        return LocalContainer(self, image, **options)

    def _create(self, image: str, volumes: Mapping[str, Any]) -> SimpleNamespace:
        """Return a container that does not run: with it an archive is unpacked in a volume."""
        assert image == _NOTHING
        (name,) = volumes

        def put_archive(_path: str, archive: IO[bytes]) -> None:
            with tarfile.open(fileobj=archive) as files:
                files.extractall(self.directory / name, filter="data")

        return SimpleNamespace(put_archive=put_archive, remove=lambda force: force)

    def _volume(self, name: str, **_: Any) -> SimpleNamespace:
        directory = self.directory / name
        directory.mkdir()
        return SimpleNamespace(name=name, remove=lambda _force: shutil.rmtree(directory))


def _network(name: str, **_: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, remove=lambda: None)


def _find_environment(
    buildargs: Mapping[str, str] | None = None, **_: Any
) -> tuple[SimpleNamespace, list[str]]:
    """Return an image, whose id is the directory of its commands, and an empty build log."""
    if buildargs is None:  # the image for `create`
        return SimpleNamespace(id=_NOTHING), []
    version = buildargs["CELERY_VERSION"].removesuffix(".*")
    environment = ROOT / ".venv" / f"celery-{version}"
    if not environment.exists():
        raise ImageNotFound(f"{environment} is missing: run make smoke CELERY={version}")
    return SimpleNamespace(id=str(environment / "bin")), []


class LocalContainer:
    """A process with the methods and attributes of `docker.models.containers.Container`."""

    def __init__(
        self,
        engine: LocalEngine,
        image: str,
        *,
        command: Sequence[str] = ("rabbitmq-server",),  # the only image that brings its command
        environment: Mapping[str, str] | None = None,
        ports: Mapping[str, Any] | None = None,
        volumes: Mapping[str, Mapping[str, str]] | None = None,
        **_: Any,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = f"process-{self.id[:12]}"
        self._directory = engine.directory / self.name
        self._directory.mkdir()
        self._log = self._directory / "log"
        self._ports = {port: free_port() for port in ports or {}}
        paths = {
            options["bind"]: str(engine.directory / name)
            for name, options in (volumes or {}).items()
        }
        self._env = {name: paths.get(value, value) for name, value in (environment or {}).items()}
        self._command = self._local_command(engine, image, *command)
        self._start()

    def _local_command(
        self, engine: LocalEngine, image: str, program: str, *words: str
    ) -> list[str]:
        """Return the command of the container as this machine has it."""
        if program not in _SERVERS:  # one of the environment
            host_name = self.id[:12]  # as in a container; Celery would put in that of the machine
            return [f"{image}/{program}", *(word.replace("%h", host_name) for word in words)]
        path = _SERVERS[program]()
        if path is None:
            raise ImageNotFound(f"{image}: {program} is not installed")
        (port,) = self._ports.values()
        if program == "rabbitmq-server":
            self._env |= node_environment(self._directory, port, engine.mapper_port())
            return [str(path), *words]
        own = ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._directory))
        return [str(path), *words, *own]

    def _start(self) -> None:
        self._running = Tethered(self._command, self._log, self._env)

    def kill(self, signal_name: str | None = None) -> None:
        number = signal.Signals[signal_name or "SIGKILL"]
        if number is signal.SIGKILL:  # ends all processes of a container
            self._running.end()
        else:
            self._running.process.send_signal(number)

    def restart(self, timeout: float) -> None:
        self.kill("SIGTERM")
        with suppress(subprocess.TimeoutExpired):
            self._running.process.wait(timeout)
        self._running.end()
        self._start()

    def remove(self, **_: Any) -> None:
        self._running.end()
        shutil.rmtree(self._directory)

    def reload(self) -> None:
        """Do nothing: status and attributes are always read anew."""

    @property
    def status(self) -> str:
        return "running" if self._running.process.poll() is None else "exited"

    def logs(self) -> bytes:
        return self._log.read_bytes()

    @property
    def attrs(self) -> dict[str, Any]:
        # Processes have no host names of their own, so the port makes the difference.
        hosts = [f"127.0.0.1:{port}" for port in self._ports.values()]
        return {
            "Config": {"Hostname": hosts[0] if hosts else self.id[:12]},
            "NetworkSettings": {
                "Networks": {},
                "Ports": {name: [{"HostPort": str(port)}] for name, port in self._ports.items()},
            },
        }

    def exec_run(self, command: str) -> tuple[int, bytes]:
        """Return which ports of the container listen, in the format of the file."""
        assert command == "cat /proc/net/tcp /proc/net/tcp6", f"not for processes: {command}"
        listening = [name for name, port in self._ports.items() if listens(port)]
        rows = [f"0: 0:{int(name.removesuffix('/tcp')):04X} 0:0 0A" for name in listening]
        return 0, "\n".join(rows).encode()
