"""Who is shown what: a picture in a terminal, lines of text elsewhere, nothing beside JSON."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from celery_throttle.demo import extra
from celery_throttle.demo.record import TRICKLE, Record, Summary, figure

#: The least terminal the picture fits.
LEAST_COLUMNS, LEAST_ROWS = 72, 24


class View(Protocol):
    """Is shown the same record again and again, while it grows, and once when it has ended."""

    def show(self, record: Record) -> None:
        """Show it."""


@contextmanager
def choose(*, as_json: bool, svg: Path | None) -> Iterator[View]:
    """The view for a caller, while it is open."""
    views: list[View] = []
    with ExitStack() as ends:
        if svg is not None:
            with extra("rich"):
                from celery_throttle.demo.picture import SvgFile  # noqa: PLC0415  # an extra
            views.append(SvgFile(svg))
        if not as_json and _can_draw():
            with extra("rich"):
                from celery_throttle.demo.picture import LivePicture  # noqa: PLC0415  # an extra
            views.append(ends.enter_context(LivePicture()))
        elif not as_json:
            views.append(Lines())
        yield _Several(views)


def _can_draw() -> bool:
    """Whether standard output is a terminal that has room for the picture and its characters."""
    columns, rows = shutil.get_terminal_size()
    return (
        sys.stdout.isatty()
        and os.environ.get("TERM") != "dumb"
        and "utf" in sys.stdout.encoding.lower()
        and columns >= LEAST_COLUMNS
        and rows >= LEAST_ROWS
    )


class _Several:
    def __init__(self, views: Sequence[View]) -> None:
        self._views = views

    def show(self, record: Record) -> None:
        for view in self._views:
            view.show(record)


class Lines:
    """Plain text: a line a second, then the summary."""

    def __init__(self) -> None:
        self._second: int | None = None

    def show(self, record: Record) -> None:
        """Print what is new."""
        if self._second is None:
            self._second = 0
            _say(
                f"{record.tasks} tasks share a limit of {record.limit}, "
                f"{TRICKLE} a second have none. Starting ..."
            )
        elif record.ended:
            _say(summaryfigure(record.summary()))
        elif int(record.now) > self._second:
            self._second = int(record.now)
            _say(progress(record))


def progress(record: Record) -> str:
    """One line about the run as it stands."""
    summary = record.summary()
    waiting = record.waiting[-1][1] if record.waiting else 0
    return (
        f"{record.now:4.0f} s   {record.per_second(record.now):3.0f} starts in the last second"
        f"   {waiting:4d} waiting"
        f"   {figure(summary.deliveries_per_task, '{:.2f}')} deliveries a task"
        f"   without a limit: {figure(summary.plain_median_ms, '{:.1f} ms')}"
    )


def summaryfigure(summary: Summary) -> str:
    """The figures, one a line."""
    wait = (
        f"median {figure(summary.wait_median_s, '{:.1f} s')}, "
        f"longest {figure(summary.wait_longest_s, '{:.1f} s')}"
    )
    latency = (
        f"median {figure(summary.plain_median_ms, '{:.1f} ms')}, "
        f"p99 {figure(summary.plain_p99_ms, '{:.1f} ms')}, while the others waited"
    )
    lines = [
        ("tasks under the limit", f"{summary.tasks_ran} of {summary.tasks} ran, {summary.limit}"),
        ("quota used", figure(summary.quota_used, "{:.1%}")),
        (
            "fullest second",
            f"{summary.fullest_second} starts, {summary.fullest_second_allowed} allowed",
        ),
        ("broker deliveries per task", figure(summary.deliveries_per_task, "{:.2f}")),
        ("wait under the limit", wait),
        ("latency without a limit", latency),
    ]
    return "\n".join(f"{name:28}{value}" for name, value in lines)


def _say(text: str) -> None:
    print(text, flush=True)
