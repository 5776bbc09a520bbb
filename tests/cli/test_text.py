"""Times, previews and charts in characters."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from celery_throttle.cli.shared import charts, text
from celery_throttle.cli.shared.text import preview_text
from celery_throttle.observe.forecasts.solver import Forecast
from celery_throttle.observe.values import Preview

NOW = datetime.now(timezone.utc)


def forecast(seconds: float | None) -> Forecast:
    at = None if seconds is None else NOW + timedelta(seconds=seconds)
    return Forecast(12_000, seconds, at, "api")


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
        f"12,000 tasks wait; the last would start at {end} instead of at {start} ({zone})."
    )
    assert preview_text(Preview(1, forecast(60), forecast(60.5))) == (
        f"1 task waits; the last would start at {text.clock(NOW + timedelta(seconds=60.5))}, "
        f"as without this change ({zone})."
    )
    assert preview_text(Preview(2, forecast(60), forecast(None))) == (
        f"2 tasks wait; the last would start at an unknown time instead of at {start} ({zone})."
    )
    assert preview_text(Preview(0, forecast(0), forecast(0))) == "No task waits for it."
    assert preview_text(Preview(9, None, None)) == (
        "9 tasks wait, in more than 2,000 lines: when the last would start is not known."
    )
