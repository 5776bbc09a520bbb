"""The progress of a fan-out on a terminal: a bar, the rate, and the expected end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status.fan_outs import Progress
from celery_throttle.observe.text import format_seconds

#: Seconds between two redraws.
REFRESH_SECONDS = 0.5

#: Seconds between two forecasts, at least.
FORECAST_INTERVAL_SECONDS = 2.0

#: A forecast takes at most this part of the time: it reads all lines, which may be many.
FORECAST_TIME_SHARE = 1 / 20


@contextmanager
def watch_bar(name: str, forecast: Callable[[], Forecast]) -> Iterator[Callable[[Progress], None]]:
    """Show a bar until a fan-out is complete; yields a function that takes its progress.

    What ``forecast`` raises, the function raises.
    """
    with _TwoLineProgress() as bar:
        row = bar.add_task(name, total=None, text="")
        estimate = _EndEstimate(forecast)

        def show(progress: Progress) -> None:
            total = progress.sent if progress.closed or progress.cancelled else None
            text = describe(progress, estimate.seconds(progress))
            bar.update(row, completed=progress.ended, total=total, text=text)

        yield show


class _EndEstimate:
    """Estimates when the tasks of a fan-out will have started, by a forecast now and then."""

    def __init__(self, forecast: Callable[[], Forecast]) -> None:
        self._forecast = forecast
        self._found: Forecast | None = None
        self._found_at = self._next_at = 0.0

    def seconds(self, progress: Progress) -> float | None:
        """Return seconds; None if unknown, infinity if no worker takes tasks that could run."""
        if not progress.waiting:
            return None
        began = time.monotonic()
        found = self._found
        if found is None or began >= self._next_at:
            found = self._found = self._forecast()
            self._found_at = time.monotonic()
            pause = (self._found_at - began) / FORECAST_TIME_SHARE
            self._next_at = self._found_at + max(FORECAST_INTERVAL_SECONDS, pause)
        if found.cause in ("workers", "processes") and progress.rate is None:
            return math.inf
        if found.seconds is not None:
            return max(0.0, self._found_at + found.seconds - time.monotonic())
        return progress.waiting / progress.rate if progress.rate else None


class _TwoLineProgress(RichProgress):
    """A bar with a line of text below it: a terminal is too narrow for both in one line."""

    def __init__(self) -> None:
        name = TextColumn("{task.description}", markup=False)  # a user's text
        super().__init__(
            *(name, BarColumn(), TaskProgressColumn()),
            console=Console(stderr=True),
            refresh_per_second=1 / REFRESH_SECONDS,
        )

    def get_renderables(self) -> Iterator[RenderableType]:
        """Return the bar, then the text."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(task.fields["text"])


def describe(progress: Progress, expected: float | None) -> str:
    """Return the progress in words; ``expected``: the seconds until all tasks have started."""
    parts = [f"{progress.ended:,} of {progress.sent:,}"]
    if progress.rate is not None and not progress.complete:
        parts.append(f"{progress.rate:,.1f}/s")
    if progress.paused:
        parts.append("paused")
    elif expected == math.inf:
        parts.append("no worker takes them")
    elif expected is not None and not progress.complete:
        at = time.strftime("%H:%M:%S", time.localtime(time.time() + expected))
        parts.append(f"all started in {format_seconds(round(expected))}, by {at}")
    counts = {"running": progress.running, "failed": progress.failed, "revoked": progress.revoked}
    parts += [f"{count:,} {state}" for state, count in counts.items() if count]
    if not progress.closed and not progress.cancelled:
        parts.append("not all sent")
    return ", ".join(parts)
