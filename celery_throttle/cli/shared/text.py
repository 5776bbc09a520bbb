"""Times, pauses, previews and figures in words. Clock times are in the local time zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import ceil

from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status_text import (
    cause_text,
    limit_text,
    pause_length_text,
    shift_text,
    waiting_text,
)
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
    """Return when the last task is expected to start: a clock time, or what is known of it."""
    if forecast is None or forecast.cause is None:
        return "-" if forecast is None or forecast.at is None else clock(forecast.at)
    if forecast.at is not None:
        return clock(forecast.at)
    if forecast.cause == "workers":
        return "no worker"
    return "unknown" if forecast.earliest is None else f"after {clock(forecast.earliest)}"


def preview_text(preview: Preview) -> str:
    """Return ``"12,000 tasks wait; the last would start at 14:02:31 (CET), 4 min later."``."""
    if not preview.waiting:
        return "No task waits for it."
    before, after = preview.before, preview.after
    in_zone = f" ({zone()})" if before.earliest or after.earliest else ""
    shift = shift_text(preview)
    if preview.moves and shift:
        text = f"would start {_start(after)}{in_zone}, {shift}"
    elif preview.moves:
        text = f"would start {_start(after)}{in_zone} instead of {_start(before)}"
    else:
        text = f"still starts {_start(after)}{in_zone}"
    cause = f": {cause_text(after)}" if after.seconds is None else ""
    return f"{waiting_text(preview.waiting)}; the last {text}{cause}."


def _start(forecast: Forecast) -> str:
    if forecast.at is not None:
        return f"at {clock(forecast.at)}"
    if forecast.earliest is not None:
        return f"after {clock(forecast.earliest)}"
    return "when it is resumed" if forecast.cause == "pause" else "at an unknown time"


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile by nearest rank, ``share`` from 0 to 1; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def format_figure(value: float | None, form: str) -> str:
    """Return a figure as text; a dash if it was not measured."""
    return "-" if value is None else form.format(value)
