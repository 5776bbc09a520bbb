"""Times, pauses, previews and figures in words. Clock times are in the local time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import ceil

from celery_throttle.observe.forecasts.solver import WORKERS, Forecast
from celery_throttle.observe.status_text import limit_text, pause_length_text, waiting_text
from celery_throttle.observe.text import add_author, format_author
from celery_throttle.observe.values import Origin, Pause, Preview


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


def preview_text(preview: Preview) -> str:
    """Return ``"12,000 tasks wait; the last would start at 14:02 instead of 13:58 (CET)."``."""
    if not preview.waiting:
        return "No task waits for it."
    waiting = waiting_text(preview.waiting)
    before, after = preview.before, preview.after
    if before is None or after is None:
        return f"{waiting}, in more than 2,000 lines: when the last would start is not known."
    if preview.moves:
        change = f"{_start(after)} instead of {_start(before)}"
    else:
        change = f"{_start(after)}, as without this change"
    in_zone = f" ({zone()})" if before.at or after.at else ""
    return f"{waiting}; the last would start {change}{in_zone}."


def _start(forecast: Forecast) -> str:
    return "at an unknown time" if forecast.at is None else f"at {clock(forecast.at)}"


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile by nearest rank, ``share`` from 0 to 1; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def format_figure(value: float | None, form: str) -> str:
    """Return a figure as text; a dash if it was not measured."""
    return "-" if value is None else form.format(value)
