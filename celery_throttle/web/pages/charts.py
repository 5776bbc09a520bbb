"""Bar charts as geometry, in units of a drawing that CSS stretches to any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_throttle.observe.text import amount, count, format_seconds, format_time
from celery_throttle.observe.values import Period

#: The height of a drawing. A bar and its gap are ten units wide.
HEIGHT, _STEP, _BAR = 100, 10, 8

#: Space above the highest bar or line, as a share of it.
_HEADROOM = 0.1


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its box, and its value in words."""

    x: int
    y: float
    height: float
    title: str
    width: int = _BAR


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        label: what it shows, in words.
        bars: the bars, from left to right.
        line: the height of the line of the limit, from above; None without a line.
        top: the highest value.
    """

    label: str
    bars: tuple[Bar, ...]
    line: float | None
    top: float

    @property
    def width(self) -> int:
        """The width of the drawing."""
        return _STEP * len(self.bars)


def draw_starts(periods: Sequence[Period], rate: float | None) -> Chart:
    """Return the chart of the units granted per second, with a line at the rate."""
    values = [period.totals.granted / period.seconds for period in periods]
    total = sum(period.totals.granted for period in periods)
    units = count(round(total), "unit")
    label = f"{units} granted in {_length(periods)}, at most {_rate(max(values))}/s"
    return _draw(periods, values, [f"{_rate(value)}/s" for value in values], label, rate)


def draw_waiting(periods: Sequence[Period]) -> Chart:
    """Return the chart of the waiting tasks."""
    values = [float(period.most_waiting) for period in periods]
    label = f"Waiting tasks in {_length(periods)}, at most {amount(max(values))}"
    return _draw(periods, values, [f"{count(value, 'task')} waiting" for value in values], label)


def _draw(
    periods: Sequence[Period],
    values: Sequence[float],
    texts: Sequence[str],
    label: str,
    line: float | None = None,
) -> Chart:
    scale = HEIGHT / (1 + _HEADROOM) / (max(*values, line or 0.0) or 1.0)
    bars = []
    for n, (period, value, text) in enumerate(zip(periods, values, texts, strict=True)):
        height = round(value * scale, 1)
        title = f"{format_time(period.end)}: {text}"
        bars.append(Bar(n * _STEP, round(HEIGHT - height, 1), height, title))
    at = None if line is None else round(HEIGHT - line * scale, 1)
    return Chart(label, tuple(bars), at, max(values))


def _length(periods: Sequence[Period]) -> str:
    return format_seconds((periods[-1].end - periods[0].start).total_seconds())


def _rate(per_second: float) -> str:
    """Return a rate with two digits behind the point at most."""
    return amount(round(per_second, 2))
