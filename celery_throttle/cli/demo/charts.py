"""Bar charts of characters: one column of eighths of blocks for each value."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.text import Text

from celery_throttle.cli.demo.record import round_steps

#: Bars from one eighth of a row to a full row.
BARS = "▁▂▃▄▅▆▇█"

_EIGHTHS = " " + BARS
_LINE = "▁"


def draw_bars(values: Sequence[float], top: float, rows: int, color: str) -> list[Text]:
    """Return the rows of bars with values up to ``top``, the upper row first."""
    return [_row(values, row, top / rows, color) for row in reversed(range(rows))]


def _row(values: Sequence[float], row: int, height: float, color: str) -> Text:
    cells = []
    for value in values:
        eighths = max(0, min(round((value / height - row) * 8), 8))
        if row == 0 and value:
            eighths = max(1, eighths)  # a small value is not zero
        cells.append(_EIGHTHS[eighths])
    text = Text()
    for full, run in groupby(cells, lambda cell: cell == _EIGHTHS[8]):
        # A full cell also has a background, as fonts leave gaps between lines.
        text.append("".join(run), f"{color} on {color}" if full else color)
    return text


def draw_line(row: Text, values: Sequence[float], above: float, width: int, color: str) -> Text:
    """Draw a line along the bottom of a row, except in columns whose value is above it."""
    drawn, at = Text(), 0
    for covered, columns in groupby(values, lambda value: value > above):
        end = at + len(list(columns))
        drawn.append_text(row[at:end] if covered else Text(_LINE * (end - at), color))
        at = end
    return drawn.append(_LINE * (width - at), color)


def draw_axis(width: int, span: float, color: str) -> list[Text]:
    """Return a time axis from 0 to ``span`` seconds, and its labels below."""
    step = _step(span, width)
    line, labels = ["─"] * width, [" "] * (width + 8)
    for number in range(int(span / step) + 1):
        at = round(number * step / span * width)
        text = f"{number * step:g}" + (" s" if number == 0 else "")
        if at + len(text) > width:
            break
        line[at] = "┴"
        labels[at : at + len(text)] = text
    return [Text("".join(line), color), Text("".join(labels[:width]).rstrip(), color)]


def _step(span: float, width: int) -> float:
    """Return a round number of seconds between two labels that leaves room for each."""
    least = span * 6 / width
    return next(step for step in round_steps() if step >= least)
