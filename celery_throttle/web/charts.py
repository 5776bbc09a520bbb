"""Bar charts, which ``templates/charts.html`` draws in a box 100 units high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_throttle.observe.text import amount, count, format_seconds, format_time
from celery_throttle.observe.values import Period

#: The height of the highest bar or line: above it is a tenth of it.
_HIGHEST = 100 / 1.1


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        label: what it shows, in words.
        bars: the height of each bar and its value in words, from left to right.
        line: the height of the line of the limit; None without a line.
        top: the highest value.
    """

    label: str
    bars: tuple[tuple[float, str], ...]
    line: float | None
    top: float


def draw_starts(periods: Sequence[Period], rate: float | None) -> Chart:
    """Return the chart of the units granted per second, with a line at the rate."""
    values = [period.totals.granted / period.seconds for period in periods]
    units = count(round(sum(period.totals.granted for period in periods)), "unit")
    texts = [f"{amount(round(value, 2))}/s" for value in values]
    top = amount(round(max(values), 2))
    label = f"{units} granted in {_length(periods)}, at most {top}/s"
    return _draw(periods, values, texts, label, rate)


def draw_waiting(periods: Sequence[Period]) -> Chart:
    """Return the chart of the waiting tasks."""
    values = [float(period.most_waiting) for period in periods]
    texts = [f"{count(value, 'task')} waiting" for value in values]
    label = f"Waiting tasks in {_length(periods)}, at most {amount(max(values))}"
    return _draw(periods, values, texts, label)


def _draw(
    periods: Sequence[Period],
    values: Sequence[float],
    texts: Sequence[str],
    label: str,
    line: float | None = None,
) -> Chart:
    scale = _HIGHEST / (max(*values, line or 0.0) or 1.0)
    bars = tuple(
        (round(value * scale, 1), f"{format_time(period.end)}: {text}")
        for period, value, text in zip(periods, values, texts, strict=True)
    )
    return Chart(label, bars, None if line is None else round(line * scale, 1), max(values))


def _length(periods: Sequence[Period]) -> str:
    return format_seconds((periods[-1].end - periods[0].start).total_seconds())
