"""Starts and ends the server of the demo, unless a URL is given, and two workers."""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery

from celery_throttle.cli.demo import DemoError
from celery_throttle.cli.demo.setup import LIMIT, Setup
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.store.keys import Keys
from celery_throttle.store.url import safe_url
from celery_throttle.testing.server import Process, server_version, start_server, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

WORKERS = 2
PROCESSES = 2

_READY = b"ready"
_WORKER_OPTIONS = (
    *("--pool", "prefork", "--concurrency", str(PROCESSES), "--loglevel", "WARNING"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


class Stage:
    """Context: the server, a private one if ``url`` is None, and the workers.

    Attributes:
        server: name and version of the server.
    """

    def __init__(self, url: str | None, limit: Limit) -> None:
        self._url = url
        self._limit = limit
        self._read = 0

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            root = tempfile.TemporaryDirectory(prefix="throttle-demo-", ignore_cleanup_errors=True)
            directory = Path(ends.enter_context(root))
            url = self._url or start_server(directory, ends)
            name = f"throttle-demo-{uuid.uuid4().hex[:8]}"
            self._setup = Setup(url, name, str(self._limit))
            self._client: Any = ends.enter_context(redis.Redis.from_url(url))
            self._app = ends.enter_context(Celery(set_as_current=False))
            self._setup.configure(self._app)
            self._connect()
            if self._url is not None:
                ends.callback(self._delete_keys)
            self._link = ends.enter_context(self._app.connection_for_write(url))
            self._start_workers(directory, ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _connect(self) -> None:
        try:
            self.server = server_version(self._client)
        except redis.RedisError as error:
            raise DemoError(
                f"the server at {safe_url(self._setup.url)} cannot be used: {error}"
            ) from error

    def _start_workers(self, directory: Path, ends: ExitStack) -> None:
        self._workers = []
        for number in range(1, WORKERS + 1):
            name = f"worker-{number}"
            command = [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "celery_throttle.cli.demo.tasks",
                "worker",
            ]
            names = ("--hostname", f"{name}@{self._setup.name}")
            worker = Process(
                name, [*command, *_WORKER_OPTIONS, *names], directory, self._setup.environment()
            )
            ends.callback(worker.end)
            self._workers.append(worker)
        ready = 0

        def all_ready() -> bool:
            nonlocal ready
            ready += self.events().count(_READY)
            return ready == WORKERS

        wait_until(all_ready, self.check, "the workers")

    def check(self) -> None:
        """Raise DemoError if a worker has ended."""
        for worker in self._workers:
            worker.check()

    def send(self, task: str) -> None:
        """Send a task. Its argument is the time of sending."""
        self._app.send_task(task, (time.monotonic(),), connection=self._link, ignore_result=True)

    def events(self) -> list[bytes]:
        """Return the events of the workers since the last call."""
        events: list[bytes] = self._client.lrange(self._setup.events, self._read, -1)
        self._read += len(events)
        return events

    def waiting(self) -> int:
        """Return the number of tasks in the line."""
        return int(self._client.get(Keys(self._setup.prefix).backlog(LimitRef(LIMIT, None))) or 0)

    def _delete_keys(self) -> None:
        """Delete the keys of the demo on a given server."""
        for key in self._client.scan_iter(match=f"{self._setup.prefix}*", count=1000):
            self._client.delete(key)
