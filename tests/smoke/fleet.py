"""Two workers, what a test asks of them, and what they have recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from pytest_celery import CeleryTestSetup, CeleryTestWorker

from celery_throttle import Limiter
from tests.servers.server import wait_until

#: Tasks a second that the workers allow, and those of the next release.
RATE = 5
NEXT_RATE = 20

#: Processes of each worker.
PROCESSES = 2

#: Generous, for a slow day; most of it passes while a broker restarts and workers reconnect.
SECONDS = 90


@dataclass(frozen=True, slots=True)
class Record:
    """A start or an end of a task; `at` is in seconds by the clock of the server."""

    number: int
    worker: str
    at: float


class Fleet:
    """Sends tasks to the workers of a setup, and reads what ran."""

    def __init__(self, setup: CeleryTestSetup) -> None:
        self.workers: Sequence[CeleryTestWorker] = setup.worker_cluster
        self.broker = setup.broker
        self._app = setup.app
        self._store: redis.Redis = setup.backend.container.client
        limiter = Limiter(setup.backend.config()["host_url"], {"api": f"{RATE}/s"})
        self.limit = limiter["api"]

    def send(self, numbers: Iterable[int], seconds: float = 0) -> None:
        with self._app.connection_for_write() as connection:
            for number in numbers:
                self._app.send_task("work", (number, seconds), connection=connection)

    def records(self, stream: str) -> list[Record]:
        """What is in a stream, "starts" or "ends", in the order of time."""
        entries: Any = self._store.xrange(stream)
        return [
            Record(int(about["number"]), about["worker"], int(stamp.split("-")[0]) / 1000)
            for stamp, about in entries
        ]

    def queue_up(self, count: int, seconds: float = 0) -> None:
        """Send tasks to the paused limit, and resume it when all of them wait in its line."""
        self.limit.pause(None)
        self.send(range(count), seconds)
        wait_until(lambda: self.limit.forecast().waiting == count, f"{count} in line", SECONDS)
        self.limit.resume()

    def until_started(self, count: int) -> None:
        wait_until(lambda: len(self.records("starts")) >= count, f"{count} starts", SECONDS)

    def until_ended(self, count: int) -> None:
        wait_until(lambda: len(self.records("ends")) >= count, f"{count} ends", SECONDS)
