"""Times, pauses, previews and figures in words. Clock times are in the local time zone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil

from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status_text import end_parts, limit_text, preview_parts
from celery_throttle.observe.text import describe_pause, format_author, pause_length_text
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
    return f"{limit_text(pause.limit, pause.key)} is {describe_pause(pause, clock)}"


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
    """Return when the last waiting task is expected to start, or what is known of it."""
    return _join(end_parts(forecast))


def preview_text(preview: Preview) -> str:
    """Return ``"12,000 tasks wait; the last would start at 14:02:31 (CET), 4 min later."``."""
    return _join(preview_parts(preview), f" ({zone()})")


def _join(parts: Iterable[str | datetime], in_zone: str = "") -> str:
    """Return texts and times as one text; ``in_zone`` follows the first time."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        else:
            texts.append(f"{clock(part)}{in_zone}")
            in_zone = ""
    return "".join(texts)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile by nearest rank, ``share`` from 0 to 1; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def format_figure(value: float | None, form: str) -> str:
    """Return a figure as text; a dash if it was not measured."""
    return "-" if value is None else form.format(value)
