"""Times, previews and charts in characters."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_throttle.cli.shared import charts, text
from celery_throttle.cli.shared.text import preview_text
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.values import Preview

NOW = datetime.now(timezone.utc)


def forecast(seconds: float | None, earliest: float | None = None) -> Forecast:
    at, from_then = (
        None if one is None else NOW + timedelta(seconds=one) for one in (seconds, earliest)
    )
    if seconds is None:
        return Forecast(12_000, None, None, from_then, 7, "api", "pause")
    return Forecast(12_000, seconds, at, at, 0, "api", "limit")


def test_times_of_other_days_have_their_date() -> None:
    later = NOW + timedelta(days=3)
    assert text.clock(later) == f"{later.astimezone():%Y-%m-%d %H:%M:%S}"


def test_sparklines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

    assert len(charts.sparkline([0, 1, 2, 4])) == 4
    assert charts.sparkline([]) == ""
    monkeypatch.setattr("sys.stdout", Ascii())
    assert charts.sparkline([0, 4, 8]) == "_=#"
    assert charts.sparkline([0, 0]) == "__"


def test_previews() -> None:
    start, end = (text.clock(NOW + timedelta(seconds=some)) for some in (60, 600))
    zone = text.zone()
    assert preview_text(Preview(12_000, forecast(60), forecast(600))) == (
        f"12,000 tasks wait; the last would start at {end} ({zone}), 9 min later."
    )
    assert preview_text(Preview(1, forecast(60), forecast(60.5))) == (
        f"1 task waits; the last still starts at {text.clock(NOW + timedelta(seconds=60.5))} "
        f"({zone})."
    )
    assert preview_text(Preview(2, forecast(60), forecast(None))) == (
        f"2 tasks wait; the last would start when it is resumed instead of at {start} ({zone}): "
        "7 tasks need api or a key of it, which is paused until it is resumed."
    )
    assert preview_text(Preview(0, forecast(0), forecast(0))) == "No task waits for it."
    assert preview_text(Preview(9, forecast(None, 60), forecast(None, 600))) == (
        f"9 tasks wait; the last would start after {end} ({zone}), 9 min later: "
        "7 tasks need api or a key of it, which is paused until it is resumed."
    )
