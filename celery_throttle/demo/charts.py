"""Bars in characters: one column of eighths of blocks for each value."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LINE = "▁"

#: Values of the columns; None where nothing is known yet.
Values = Sequence[float | None]


def bars(values: Values, top: float, rows: int, color: str) -> list[Text]:
    """Bars up to ``top`` in so many rows, the upper row first."""
    return [_row(values, row, top / rows, color) for row in reversed(range(rows))]


def _row(values: Values, row: int, height: float, color: str) -> Text:
    text = Text()
    for value in values:
        eighths = round(((value or 0.0) / height - row) * 8)
        if row == 0 and value:
            eighths = max(1, eighths)  # little is not nothing
        # A full cell has a background too: fonts leave gaps between the lines.
        full = eighths >= len(_EIGHTHS) - 1
        text.append(
            _EIGHTHS[max(0, min(eighths, 8))], f"{color} on {color}" if full else color
        )
    return text


def draw_line(row: Text, values: Values, above: float, color: str) -> Text:
    """A line along the bottom of a row, but for the columns whose value is above it."""
    drawn = Text()
    for character, value in zip(row.divide(range(1, len(values))), values, strict=True):
        covered = value is not None and value > above
        drawn.append_text(character if covered else Text(_LINE, color))
    return drawn


def axis(width: int, span: float, color: str) -> list[Text]:
    """A time axis from 0 to ``span`` seconds, and its labels below."""
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
    """Seconds between two labels, round ones, with room for each."""
    least = span * 6 / width
    size = 1.0
    while True:
        for factor in (1, 2, 5):
            if size * factor >= least:
                return size * factor
        size *= 10
