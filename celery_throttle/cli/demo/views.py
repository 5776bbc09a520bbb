"""Shows a record: as a picture in a terminal, as lines of text elsewhere, not beside JSON."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery_throttle.cli.demo import demo_extra
from celery_throttle.cli.demo.record import PLAIN_TASKS_PER_SECOND, Record, Summary, format_figure

#: The smallest terminal that the picture fits.
MIN_COLUMNS, MIN_ROWS = 72, 24


#: Shows one record; called repeatedly while the run goes on, and once when it has ended.
View = Callable[[Record], None]


@contextmanager
def open_view(*, as_json: bool, svg: Path | None) -> Iterator[View]:
    """Context: the view for these options and this terminal."""
    views: list[View] = []
    with ExitStack() as ends:
        if svg is not None:
            with demo_extra("rich"):
                from celery_throttle.cli.demo.picture import SvgFile  # noqa: PLC0415  # an extra
            views.append(SvgFile(svg).show)
        if not as_json and _can_draw():
            with demo_extra("rich"):
                from celery_throttle.cli.demo.picture import LivePicture  # noqa: PLC0415  # an extra
            views.append(ends.enter_context(LivePicture()).show)
        elif not as_json:
            views.append(TextView().show)

        def show(record: Record) -> None:
            for view in views:
                view(record)

        yield show


def _can_draw() -> bool:
    """Whether standard output is a terminal that fits the picture and shows its characters."""
    columns, rows = shutil.get_terminal_size()
    return (
        sys.stdout.isatty()
        and os.environ.get("TERM") != "dumb"
        and "utf" in sys.stdout.encoding.lower()
        and columns >= MIN_COLUMNS
        and rows >= MIN_ROWS
    )


class TextView:
    """Prints a line every second, then the summary."""

    def __init__(self) -> None:
        self._second: int | None = None

    def show(self, record: Record) -> None:
        """Print what has changed."""
        if self._second is None:
            self._second = 0
            _print(
                f"{record.tasks} tasks share a limit of {record.limit}, "
                f"{PLAIN_TASKS_PER_SECOND} a second have none. Starting ..."
            )
        elif record.ended:
            _print(format_summary(record.summary()))
        elif int(record.now) > self._second:
            self._second = int(record.now)
            _print(progress(record))


def progress(record: Record) -> str:
    """Return one line about the run."""
    summary = record.summary()
    waiting = record.waiting[-1][1] if record.waiting else 0
    return (
        f"{record.now:4.0f} s   {record.per_second(record.now):3.0f} starts in the last second"
        f"   {waiting:4d} waiting"
        f"   {format_figure(summary.deliveries_per_task, '{:.2f}')} deliveries per task"
        f"   without a limit: {format_figure(summary.plain_median_ms, '{:.1f} ms')}"
    )


def format_summary(summary: Summary) -> str:
    """Return the figures, one per line."""
    wait = (
        f"median {format_figure(summary.wait_median_s, '{:.1f} s')}, "
        f"longest {format_figure(summary.wait_longest_s, '{:.1f} s')}"
    )
    latency = (
        f"median {format_figure(summary.plain_median_ms, '{:.1f} ms')}, "
        f"p99 {format_figure(summary.plain_p99_ms, '{:.1f} ms')}, while the others waited"
    )
    lines = [
        ("tasks under the limit", f"{summary.tasks_ran} of {summary.tasks} ran, {summary.limit}"),
        ("quota used", format_figure(summary.quota_used, "{:.1%}")),
        (
            "fullest second",
            f"{summary.fullest_second} starts, {summary.fullest_second_allowed} allowed",
        ),
        ("broker deliveries per task", format_figure(summary.deliveries_per_task, "{:.2f}")),
        ("wait under the limit", wait),
        ("latency without a limit", latency),
    ]
    return "\n".join(f"{name:28}{value}" for name, value in lines)


def _print(text: str) -> None:
    print(text, flush=True)
