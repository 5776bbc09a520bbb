"""A record of the tasks that ran in a test; the fixture ``throttle_runs`` makes one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from celery_throttle.errors import LimitValueError, shown


@dataclass(slots=True)
class TaskRun:
    """The record of one task in a test.

    Attributes:
        name: The name of the task.
        id: The id of the task.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        throttled_by: The names of the limits that refused it, in order.
        wait: The seconds that it waited in lines, or at the broker.
        started: The seconds from the beginning of the record to its last start; None if it has not
            started.
    """

    name: str
    id: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    throttled_by: list[str] = field(default_factory=list)
    wait: float = 0.0
    started: float | None = None

    def __str__(self) -> str:
        arguments = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        start = "has not started" if self.started is None else f"started at {self.started:.3f} s"
        limits = ", ".join(self.throttled_by)
        wait = f", throttled by {limits}, waited {self.wait:.3f} s" if limits else ""
        return f"{self.name}({', '.join(arguments)}) {start}{wait}"


class TaskRuns:
    """A record of the tasks that started or were throttled, in the order of their first events.

    The fixture ``throttle_runs`` makes a record. It contains the starts of tasks in its own process
    only: tasks that start in other processes, as with the prefork pool, are missing. Its methods
    look at the tasks with the name ``name``, or at all tasks by default. When an assertion fails,
    its message has a line for each task.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._runs: dict[str, TaskRun] = {}
        self._changed = threading.Condition()

    def __str__(self) -> str:
        return "\n".join(map(str, self.all())) or "no task has started or been throttled"

    def all(self, name: str | None = None) -> list[TaskRun]:
        """Return the tasks that started or were throttled."""
        with self._changed:
            return [run for run in self._runs.values() if name in (None, run.name)]

    def throttled(self, name: str | None = None) -> list[TaskRun]:
        """Return the tasks that a limit refused at least once."""
        return [run for run in self.all(name) if run.throttled_by]

    def started(self, name: str | None = None) -> list[TaskRun]:
        """Return the tasks that have started, in the order of their starts."""
        runs = [run for run in self.all(name) if run.started is not None]
        return sorted(runs, key=lambda run: run.started or 0.0)

    def wait_for_starts(
        self, count: int, name: str | None = None, timeout: float = 10.0
    ) -> list[TaskRun]:
        """Wait until tasks have started, and return the tasks that have started.

        Args:
            count: The least number of tasks to wait for.
            name: The name of the tasks; default all tasks.
            timeout: The most seconds to wait; default 10.

        Raises:
            AssertionError: Fewer tasks have started in that time.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self.started(name)) >= count, timeout)
            started = self.started(name)
        if len(started) < count:
            self._fail("started", name, len(started), f"{count} or more in {timeout:g} s")
        return started

    def assert_throttled(self, name: str | None = None, *, count: int | None = None) -> None:
        """Assert that limits refused tasks.

        Args:
            name: The name of the tasks; default all tasks.
            count: The exact number of tasks; default any number above 0.

        Raises:
            AssertionError: Limits refused a different number of tasks.
        """
        found = len(self.throttled(name))
        if found != count and (count is not None or not found):
            self._fail("were throttled", name, found, "1 or more" if count is None else count)

    def assert_not_throttled(self, name: str | None = None) -> None:
        """Assert that no limit refused a task."""
        self.assert_throttled(name, count=0)

    def assert_most_starts(self, most: int, seconds: float, name: str | None = None) -> None:
        """Assert that not too many tasks started in any window of time.

        Args:
            most: The most starts that are allowed in a window.
            seconds: The length of the window, above 0.
            name: The name of the tasks; default all tasks.

        Raises:
            AssertionError: More tasks started in a window.
            LimitValueError: The window has no length, so no task could start in it.
        """
        if not seconds > 0:
            raise LimitValueError(f"seconds is {shown(seconds)}; allowed: a number above 0")
        starts = [run.started or 0.0 for run in self.started(name)]
        windows = (sum(at <= other < at + seconds for other in starts) for at in starts)
        found = max(windows, default=0)
        if found > most:
            self._fail(f"started within {seconds:g} s", name, found, f"at most {most}")

    def _fail(self, what: str, name: str | None, found: int, expected: object) -> NoReturn:
        __tracebackhide__ = True
        tasks = "tasks" if name is None else f"tasks {name!r}"
        raise AssertionError(f"{tasks} that {what}: {found}, not {expected}:\n{self}")

    @contextmanager
    def recording(self) -> Iterator[TaskRuns]:
        """Return a context manager that records tasks until it exits; its value is this record."""
        from celery.signals import task_prerun  # noqa: PLC0415  # a clock needs no Celery

        from celery_throttle.signals import task_released, task_throttled  # noqa: PLC0415  # the same

        receivers: dict[Any, Any] = {
            task_prerun: self._on_start,
            task_throttled: self._on_throttled,
            task_released: self._on_released,
        }
        for signal, receiver in receivers.items():
            signal.connect(receiver, weak=False)
        try:
            yield self
        finally:
            for signal, receiver in receivers.items():
                signal.disconnect(receiver)

    def _on_start(
        self, sender: Any, task_id: str, args: Sequence[Any], kwargs: dict[str, Any], **_: Any
    ) -> None:
        with self._changed:
            run = self._run(task_id, sender.name)
            run.args, run.kwargs = tuple(args), dict(kwargs)
            run.started = time.monotonic() - self._began
            self._changed.notify_all()

    def _on_throttled(self, sender: Any, request: Any, limit: str, **_: Any) -> None:
        with self._changed:
            run = self._run(request.id, sender.name)
            run.args, run.kwargs = tuple(request.args), dict(request.kwargs)
            run.throttled_by.append(limit)
            self._changed.notify_all()

    def _on_released(self, sender: Any, request: Any, wait: float, **_: Any) -> None:
        with self._changed:
            self._run(request.id, sender.name).wait += wait

    def _run(self, task_id: str, name: str) -> TaskRun:
        return self._runs.setdefault(task_id, TaskRun(name, task_id))
