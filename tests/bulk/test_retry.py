"""Retries while the server cannot be reached."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial

import pytest

from celery_throttle import StoreUnavailableError
from celery_throttle.bulk import retry
from celery_throttle.operations.plan import read_call
from celery_throttle.store.client import Store
from tests.servers.server import Server


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


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["run", "confirm"])
def test_a_call_that_takes_longer_than_a_lost_server_may_is_not_repeated_for_ever(
    own_server: Server, name: str
) -> None:
    """``throttle_timeout`` may be a minute as well."""
    store = Store(own_server.url, timeout=0.3)
    calls = {"run": partial(store.run, read_call("")), "confirm": partial(store.confirm, 1)}
    ends = time.monotonic() + 5

    def action() -> None:
        assert time.monotonic() < ends, "it goes on for ever"
        calls[name]()

    own_server.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailableError):
            retry.retry_outage(action, "A test")
    finally:
        own_server.signal(signal.SIGCONT)
        store.close()
