"""A record of tasks, without a worker."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from celery_throttle.testing import TaskRun, TaskRuns


class InterruptedRuns(TaskRuns):
    """A record to which another thread adds a start right after the first look at it."""

    def __init__(self) -> None:
        super().__init__()
        start: dict[str, Any] = {"sender": SimpleNamespace(name="charge"), "task_id": "1"}
        self._other = threading.Thread(
            target=self._on_start, kwargs={**start, "args": (), "kwargs": {}}
        )

    def started(self, name: str | None = None) -> list[TaskRun]:
        found = super().started(name)
        if self._other.ident is None:
            self._other.start()
            self._other.join(0.2)
        return found


def test_a_start_that_comes_between_look_and_wait_is_not_missed() -> None:
    assert [run.id for run in InterruptedRuns().wait_for_starts(1, timeout=2)] == ["1"]
