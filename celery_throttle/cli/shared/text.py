"""Numbers, times, keys and pauses as people read them. Clock times are in the local time zone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from math import inf

from celery_throttle.observe.forecasts.solver import WORKERS, Forecast
from celery_throttle.observe.status_text import limit_text, pause_length_text
from celery_throttle.observe.text import add_author, format_author
from celery_throttle.observe.values import Origin, Pause

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"


def sentence(text: str) -> str:
    """Return the text with a capital letter."""
    return text[:1].upper() + text[1:]


def clock(at: datetime) -> str:
    """Return a time in the local time zone, with the date unless it is today."""
    local = at.astimezone()
    is_today = local.date() == datetime.now(local.tzinfo).date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M:%S}"


def zone() -> str:
    """Return the name of the local time zone."""
    return datetime.now().astimezone().tzname() or "local time"


def paused_text(subject: str, seconds: float, asked: float | None) -> str:
    """Return ``"Paused limit mail for 10 min"``, or that a longer pause stays in force.

    ``seconds``: how long it is paused now; ``asked``: how long it should be, None without an end.
    """
    length = pause_length_text(seconds)
    if asked is None or seconds <= asked:
        return f"Paused {subject} {length}"
    return f"{sentence(subject)} stays paused {length}, as a pause in force is never shortened"


def pause_text(pause: Pause) -> str:
    """Return ``"limit mail is paused until 14:02:31, by ann@web: why"``."""
    until = "it is resumed" if pause.until is None else clock(pause.until)
    subject = limit_text(pause.limit, pause.key)
    return add_author(f"{subject} is paused until {until}", pause.author)


def origin_text(origin: Origin) -> str:
    """Return ``"defined at run time at 13:02:31, until 14:02:31, by ann@web: why"``."""
    text = {"code": "from the code", "rules": "from the rules file"}.get(origin.layer)
    text = text or f"defined at {origin.layer}"
    if origin.defined is not None:
        text += f" at {clock(origin.defined)}"
    if origin.until is not None:
        text += f", until {clock(origin.until)},"
    return text + format_author(origin.author)


def end_text(forecast: Forecast | None) -> str:
    """Return when the last task is expected to start: a clock time, or why that is unknown."""
    if forecast is None:
        return "unknown"
    if not forecast.waiting:
        return "-"
    if forecast.at is not None:
        return clock(forecast.at)
    return "no worker" if forecast.limited_by == WORKERS else "unknown"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value; the highest bar is the greatest value."""
    encoding = sys.stdout.encoding or "ascii"
    bars = _BARS if "utf" in encoding.lower() else _ASCII_BARS
    top = max(values, default=0) or inf
    return "".join(bars[min(len(bars) - 1, int(value / top * len(bars)))] for value in values)
