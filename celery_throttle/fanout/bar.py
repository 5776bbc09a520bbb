"""A fan-out on a terminal: a bar, how fast it goes, and when it will be done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from celery_throttle.fanout.retry import insist
from celery_throttle.forecasts.solver import WORKERS

if TYPE_CHECKING:
    from celery_throttle.fanout.handle import FanOut
    from celery_throttle.fanout.progress import Progress

#: Seconds between two looks.
EVERY = 0.5

#: Seconds between two forecasts at least.
AGAIN = 2.0


@contextmanager
def sending(name: str, expected: int) -> Iterator[Callable[[int, int], None]]:
    """A bar while tasks are sent.

    Args:
        name: of the fan-out.
        expected: how many tasks, if that is known; 0 if it is not.

    Gives a function to be called with how many were dealt with, and how many wait.
    """
    with _bar() as bar:
        row = bar.add_task(f"sending {name}", total=expected or None, told="")
        began = time.monotonic()

        def show(dealt: int, waiting: int) -> None:
            rate = dealt / max(1e-3, time.monotonic() - began)
            told = f"{dealt:,} tasks, {rate:,.0f}/s, {waiting:,} wait"
            bar.update(row, completed=dealt, told=told)

        yield show


def watch(fan_out: FanOut, timeout: float | None) -> Progress:
    """A bar until a fan-out is complete; see :meth:`FanOut.watch`."""
    with _bar() as bar:
        row = bar.add_task(fan_out.name, total=None, told="")
        ending = Ending(fan_out)

        def show(progress: Progress) -> None:
            total = progress.sent if progress.closed or progress.cancelled else None
            told = describe(progress, ending.expected(progress))
            bar.update(row, completed=progress.ended, total=total, told=told)

        return fan_out.wait(timeout, show)


class Ending:
    """When a fan-out is expected to have ended, asked for now and then.

    A forecast reads all lines, which may be many: it is not to keep the server busy.
    """

    def __init__(self, fan_out: FanOut) -> None:
        self._fan_out = fan_out
        self._at: float | None = None
        self._for_workers = False
        self._next = 0.0

    def expected(self, progress: Progress) -> float | None:
        """Seconds; None if nobody knows, infinity if no worker takes what could run."""
        began = time.monotonic()
        if began >= self._next and progress.waiting:
            told = insist(self._fan_out.forecast, self._fan_out.name)
            now = time.monotonic()
            self._at = None if told.seconds is None else now + told.seconds
            self._for_workers = told.bound_by == WORKERS
            self._next = now + max(AGAIN, 20 * (now - began))
        if not progress.waiting:
            return None
        if self._for_workers and progress.rate is None:
            return math.inf
        if self._at is not None:
            return max(0.0, self._at - time.monotonic())
        return progress.waiting / progress.rate if progress.rate else None


class _TwoLines(Bar):
    """What is told has a line of its own: beside the bar, a terminal is too narrow for both."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, then the text."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["told"])


def _bar() -> Bar:
    name = TextColumn("{task.description}", markup=False)  # users gave it
    return _TwoLines(
        *(name, BarColumn(), TaskProgressColumn()),
        console=Console(stderr=True),
        refresh_per_second=1 / EVERY,
    )


def describe(progress: Progress, expected: float | None) -> str:
    """How far a fan-out is, in words."""
    told = [f"{progress.ended:,} of {progress.sent:,}"]
    if progress.rate is not None and not progress.complete:
        told.append(f"{progress.rate:,.1f}/s")
    if progress.paused:
        told.append("paused")
    elif expected == math.inf:
        told.append("no worker takes them")
    elif expected is not None and not progress.complete:
        at = time.strftime("%H:%M:%S", time.localtime(time.time() + expected))
        told.append(f"all begun in {timedelta(seconds=round(expected))}, at {at}")
    told += [
        f"{count:,} {what}"
        for count, what in (
            (progress.running, "running"),
            (progress.failed, "failed"),
            (progress.revoked, "revoked"),
        )
        if count
    ]
    if not progress.closed and not progress.cancelled:
        told.append("not all sent")
    return ", ".join(told)
