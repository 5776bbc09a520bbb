"""Probes: plain tasks, sent one after another, that measure how soon a task starts.

A latency runs from just before the message is put into the broker to the first line of the task's
body.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.stage import QUEUE, Stage, Worker, wait_until

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

PROBES = 50


def measure_latencies(
    stage: Stage, workers: Sequence[Worker], pause: tuple[float, float], queue: str = QUEUE
) -> list[float]:
    """Send probes to the workers; return their latencies in seconds, without that of the first.

    ``pause``: the least and the most seconds between two probes.
    """
    before = [worker.count() for worker in workers]
    sent = {}
    for task_id, message in stage.compose("free", PROBES + 1, queue):
        sent[task_id] = time.time()
        stage.push([(task_id, message)], queue)
        time.sleep(random.uniform(*pause))

    def starts() -> dict[str, float]:
        pairs = zip(workers, before, strict=True)
        marks = [mark for worker, skip in pairs for mark in worker.marks(skip=skip)]
        return {mark.task_id: mark.time for mark in marks if mark.task_id in sent}

    wait_until(lambda: len(starts()) == len(sent), "probes")
    started = starts()
    return [started[task_id] - at for task_id, at in sent.items()][1:]


class Probes:
    """Context: sends probes beside other work, in a thread, 10 to 30 ms apart."""

    def __init__(self, stage: Stage, workers: Sequence[Worker]) -> None:
        self._stage, self._workers = stage, workers
        self._messages = iter(stage.compose("free", 2_000))
        self._before = [worker.count() for worker in workers]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ended.wait(random.uniform(0.010, 0.030)):
            task_id, message = next(self._messages)
            self.sent[task_id] = time.time()
            self._stage.broker.lpush(QUEUE, message)

    def latencies(self) -> list[float]:
        """Wait for the tasks; return the seconds that each took to start."""
        wait_until(lambda: len(self._starts()) == len(self.sent), "plain tasks")
        return [start - self.sent[task_id] for task_id, start in self._starts().items()]

    def _starts(self) -> dict[str, float]:
        marks = (
            mark
            for worker, skip in zip(self._workers, self._before, strict=True)
            for mark in worker.marks(skip=skip)
        )
        return {mark.task_id: mark.time for mark in marks if mark.task_id in self.sent}
