"""Retries while the server cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_throttle import StoreUnavailableError
from celery_throttle.bulk import retry


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(retry, "RETRY_INTERVAL_SECONDS", 0.01)


def test_the_time_of_an_action_before_the_server_is_lost_does_not_count() -> None:
    """Such as an hour in which it stores results."""

    def attempts() -> Iterator[float]:
        yield from (0.3, 0.3)

    durations = attempts()

    def action() -> str:
        for seconds in durations:
            time.sleep(seconds)
            raise StoreUnavailableError("it is down")
        return "done"

    assert retry.retry_outage(action, "A test") == "done"


def test_a_server_that_stays_lost_is_an_error() -> None:
    calls = []

    def action() -> None:
        calls.append(time.monotonic())
        raise StoreUnavailableError("it is down")

    with pytest.raises(StoreUnavailableError):
        retry.retry_outage(action, "A test")
    assert len(calls) > 1
    assert calls[-1] - calls[0] >= 0.2
