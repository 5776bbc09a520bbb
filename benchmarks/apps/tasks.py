"""What all apps share: the settings of a benchmark for its workers, and the tasks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import task_failure, task_received, worker_ready

from benchmarks.marks import open_marks, write

#: See :class:`benchmarks.stage.Stage`.
SETTINGS: dict[str, Any] = json.loads(os.environ["BENCHMARK"])
DIRECTORY = Path(SETTINGS["marks"])

#: Seconds of a task ``held``.
HELD_SECONDS = 0.05

_STARTS = open_marks(DIRECTORY / "starts")
_ENDS = open_marks(DIRECTORY / "ends")


def run(self: Any) -> None:
    """The body of a task without arguments: it only writes a mark."""
    write(_STARTS, self.request.id)


def run_keyed(self: Any, key: str) -> None:  # noqa: ARG001  # it is the key of the task's limit
    """The body of a task whose limit is split by its argument."""
    write(_STARTS, self.request.id)


def run_padded(self: Any, text: str) -> None:  # noqa: ARG001  # it makes the message longer
    """The body of a task with a long argument."""
    write(_STARTS, self.request.id)


def run_held(self: Any) -> None:
    """The body of a task that takes a while: 50 ms from one mark to the other."""
    write(_STARTS, self.request.id)
    time.sleep(HELD_SECONDS)
    write(_ENDS, self.request.id)


def define(
    app: Celery,
    limited: dict[str, Any],
    keyed: dict[str, Any],
    both: dict[str, Any] | None = None,
    computed: dict[str, Any] | None = None,
) -> None:
    """Define the tasks on an app: ``free`` without a limit, the others with these options."""
    task: Any = app.task
    task(bind=True, name="free")(run)
    task(bind=True, name="limited", **limited)(run)
    task(bind=True, name="keyed", **keyed)(run_keyed)
    task(bind=True, name="held", **limited)(run_held)
    task(bind=True, name="padded", **limited)(run_padded)
    for name, options in (("both", both), ("computed", computed)):
        if options is not None:
            task(bind=True, name=name, **options)(run_keyed)


if SETTINGS["watch"]:
    _DELIVERIES = open_marks(DIRECTORY / "deliveries")
    _FAILURES = open_marks(DIRECTORY / "failures")

    @task_received.connect
    def _received(request: Any, **_: Any) -> None:
        # What comes out of a line is no delivery of the broker's.
        if getattr(request.message, "claim", None) is None:
            write(_DELIVERIES, request.id)

    @task_failure.connect
    def _failed(task_id: str, **_: Any) -> None:
        write(_FAILURES, task_id)


@worker_ready.connect
def _ready(**_: Any) -> None:
    (DIRECTORY / "ready").touch()
