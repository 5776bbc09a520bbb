"""Real Celery workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from celery import Celery

from tests.tether import Tethered
from tests.worker_template import WORKER_ENV, start_worker

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

QUICK = ("--without-mingle", "--without-gossip")  # a worker looks for others for a second
READY_SECONDS = 100


class Worker:
    """`celery -A app worker` from its start to its end; a context that waits until it is ready."""

    def __init__(
        self,
        app: str,
        broker_url: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        loglevel: str = "INFO",
        options: Sequence[str] = QUICK,
        hostname: str = "",
        env: Mapping[str, str] | None = None,
        python: str | Path = sys.executable,
    ) -> None:
        self.hostname = hostname or f"worker-{uuid.uuid4().hex[:12]}@localhost"
        self._broker_url = broker_url
        self._logs_ready = loglevel.upper() in ("DEBUG", "INFO")
        self._directory = tempfile.TemporaryDirectory(prefix="worker-")
        self._command = [
            *(str(python), "-m", "celery", "-A", app, "worker"),
            *("--pool", pool, "--concurrency", str(concurrency)),
            *("--hostname", self.hostname, "--loglevel", loglevel),
            *(("--queues", ",".join(queues)) if queues else ()),
            *options,
        ]
        self._env = {
            "CELERY_BROKER_URL": broker_url,
            **WORKER_ENV,
            "TMPDIR": self._directory.name,  # a killed worker leaves its pool's files behind
            **(env or {}),
        }

    def start(self) -> None:
        """Starts it without waiting, so that several workers can start side by side."""
        log = Path(self._directory.name) / "log"
        self._running = Tethered(self._command, log, self._env, start=start_worker)

    def wait_until_ready(self) -> None:
        ready = self._says_ready if self._logs_ready else self._answers_ping
        self._running.wait_until(ready, READY_SECONDS)

    def _says_ready(self) -> bool:
        return f"{self.hostname} ready." in self.log()

    def _answers_ping(self) -> bool:
        with Celery(broker=self._broker_url, set_as_current=False) as app:
            return bool(app.control.ping([self.hostname], timeout=0.5, limit=1))

    @property
    def pid(self) -> int:
        return self._running.process.pid

    def log(self) -> str:
        return self._running.log()

    def kill(self) -> None:
        """SIGKILL for the main process; its pool dies with it, and nothing is tidied up."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: a warm shutdown, which finishes the tasks that run."""
        self._signal(signal.SIGTERM)

    def quit(self) -> None:
        """SIGQUIT: a cold shutdown, which ends the tasks that run."""
        self._signal(signal.SIGQUIT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def has_ended(self) -> bool:
        return self._running.process.poll() is not None

    def wait(self, timeout: float = 100) -> int:
        """Waits for its end, and says how it ended: an exit code, or minus a signal."""
        return self._running.process.wait(timeout)

    def close(self) -> None:
        self._running.end()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


StartWorker = Callable[..., Worker]  # see the fixture `start_worker`
