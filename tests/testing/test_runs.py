"""A record of tasks, without a worker."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle import LimitValueError
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


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_a_window_without_a_length_would_hold_no_start(seconds: float) -> None:
    with pytest.raises(LimitValueError, match=r"seconds is .*: a number above 0"):
        TaskRuns().assert_most_starts(1, seconds)
