"""Bar charts, which ``templates/charts.html`` draws in a box 100 units high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from celery_throttle.observe.text import amount, count, format_seconds, format_time
from celery_throttle.observe.values import Period

#: The height of the highest bar or line: above it is a tenth of it.
_HIGHEST = 100 / 1.1

#: The times below the charts are at thirds of their length.
_PARTS = 3

#: The most round values of an axis: of a high chart, and of a low one.
_HIGH_TICKS, _LOW_TICKS = 4, 2

#: The width of a bar and its gap, in units.
_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart."""

    label: str  #: what it shows, in words
    #: The height of each bar and its value in words, from left to right.
    bars: tuple[tuple[float, str], ...]
    line: str  #: the path of the line of the limit; empty without a line
    #: Round values of the axis: their heights, and the values in words.
    ticks: tuple[tuple[float, str], ...]
    top: float  #: the highest value


@dataclass(frozen=True, slots=True)
class Spark:
    """A small chart, of bars without values."""

    label: str  #: what it shows, in words
    width: int  #: in units
    path: str  #: the path of the bars


def draw_starts(periods: Sequence[Period], rates: Sequence[float | None] = ()) -> Chart:
    """Return the chart of the units granted per second, with a line at the rate of each period."""
    values = _starts(periods)
    texts = [f"{amount(value, 2)}/s" for value in values]
    return _draw(periods, values, texts, _starts_label(periods, values), line=rates, unit="/s")


def draw_spark(periods: Sequence[Period]) -> Spark:
    """Return the small chart of the units granted per second."""
    values = _starts(periods)
    scale = _HIGHEST / (max(values) or 1.0)
    path = "".join(
        f"M{number * _WIDTH} {round(100 - value * scale, 1)}h8V100h-8z"
        for number, value in enumerate(values)
        if value
    )
    return Spark(_starts_label(periods, values), len(values) * _WIDTH, path)


def _starts(periods: Sequence[Period]) -> list[float]:
    return [period.totals.granted / period.seconds for period in periods]


def _starts_label(periods: Sequence[Period], values: Sequence[float]) -> str:
    units = count(round(sum(period.totals.granted for period in periods)), "unit")
    return f"{units} granted in {_length(periods)}, at most {amount(max(values), 2)}/s"


def draw_rows(periods: Sequence[Period]) -> dict[str, Chart]:
    """Return the charts of the waiting tasks and, if there are any, of refusals, by title."""
    rows: dict[str, Chart] = {}
    for title, noun, values in (
        ("Waiting tasks", "task", [period.most_waiting for period in periods]),
        ("Refused calls", "call", [period.totals.refusals for period in periods]),
        ("429s", "response", [period.totals.api_refusals for period in periods]),
    ):
        if any(values) or not rows:
            label = f"{title} in {_length(periods)}, at most {amount(max(values))}"
            rows[title] = _draw(periods, values, [count(value, noun) for value in values], label)
    return rows


def time_labels(periods: Sequence[Period]) -> list[str]:
    """Return the times below a chart, from left to right."""
    seconds = (periods[-1].end - periods[0].start).total_seconds()
    labels = [format_seconds(seconds * part / _PARTS) for part in range(_PARTS, 0, -1)]
    return [f"{labels[0]} ago", *labels[1:], "now"]


def _draw(
    periods: Sequence[Period],
    values: Sequence[float],
    texts: Sequence[str],
    label: str,
    *,
    line: Sequence[float | None] = (),
    unit: str = "",
) -> Chart:
    highest = max([*values, *(rate or 0.0 for rate in line)])
    scale = _HIGHEST / (highest or 1.0)
    bars = tuple(
        (round(value * scale, 1), f"{format_time(period.end)}: {text}")
        for period, value, text in zip(periods, values, texts, strict=True)
    )
    ticks = tuple(
        (round(value * scale, 1), f"{amount(value)}{unit}")
        for value in _round_values(highest, _HIGH_TICKS if unit else _LOW_TICKS, whole=not unit)
    )
    heights = [None if rate is None else round(100 - rate * scale, 1) for rate in line]
    return Chart(label, bars, _step_path(heights), ticks, max(values))


def _round_values(top: float, most: int, *, whole: bool) -> list[float]:
    """Return round numbers up to the highest value: 1, 2 or 5 with zeros apart."""
    if not top:
        return []
    power = 10.0 ** floor(log10(top))
    step = next(size * power for size in (0.5, 1, 2, 5) if floor(top / (size * power)) <= most)
    step = max(step, 1.0) if whole else step
    return [step * number for number in range(1, floor(top / step) + 1)]


def _step_path(heights: Sequence[float | None]) -> str:
    """Return the path of a line of steps; it has a gap where a height is None."""
    path, before = "", None
    for number, height in enumerate(heights):
        if height is not None:
            start = f"V{height}" if before is not None else f"M{number * _WIDTH} {height}"
            path += f"{'' if height == before else start}H{(number + 1) * _WIDTH}"
        before = height
    return path


def _length(periods: Sequence[Period]) -> str:
    return format_seconds((periods[-1].end - periods[0].start).total_seconds())
