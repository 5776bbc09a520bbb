"""Previews of changes as sentences."""

from __future__ import annotations

import click

from celery_throttle.cli.shared.text import clock, zone
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.status_text import waiting_text
from celery_throttle.observe.values import Preview


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


def show_preview(preview: Preview, *, as_json: bool) -> None:
    """Print a preview before a change that can be undone."""
    if not as_json:
        click.echo(preview_text(preview))
