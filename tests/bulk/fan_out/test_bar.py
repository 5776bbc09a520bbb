"""The progress of a fan-out on a terminal, and its forecast."""

from __future__ import annotations

import math
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_throttle.bulk.fan_out import Progress
from celery_throttle.bulk.fan_out.bar import describe
from celery_throttle.errors import StoreUnavailableError
from celery_throttle.observe.forecasts.solver import Forecast
from tests.bulk.fan_out.conftest import MakeApp
from tests.programs import ROOT
from tests.servers.server import Server

PROGRESS = Progress(
    name="nightly",
    sent=2000,
    waiting=900,
    running=2,
    done=1090,
    failed=5,
    revoked=3,
    rate=12.34,
    paused=0.0,
    closed=True,
    cancelled=False,
)


def test_it_says_how_far_it_is() -> None:
    text = describe(PROGRESS, 75.2)
    assert text.startswith("1,098 of 2,000, 12.3/s, all started in 1 min 15 s, by ")
    assert re.search(r", by \d\d:\d\d:\d\d, 2 running, 5 failed, 3 revoked$", text)
    assert ", 12.3/s, paused, " in describe(replace(PROGRESS, paused=5.0), 75.2)
    text = describe(replace(PROGRESS, rate=None), None)
    assert text == "1,098 of 2,000, 2 running, 5 failed, 3 revoked"
    assert ", no worker takes them, " in describe(PROGRESS, math.inf)


def test_the_bar_on_a_terminal(redis_url: str) -> None:
    """It is shown until all tasks have ended. The name is not markup."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.apps.bulk", "--bar", "40"],
        env={
            **os.environ,
            "CELERY_BROKER_URL": redis_url,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "60",
        },
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0, shown
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert "nightly[/2026]" in text
    assert "40 of 40, 40 revoked" in text


def test_a_server_that_is_lost_during_a_forecast_is_not_waited_for_after_the_timeout(
    make_app: MakeApp, own_server: Server
) -> None:
    app = make_app(throttle_url=own_server.url)
    handle = app.throttle.fan_out([app.tasks["one"].s(1)], "nightly")
    forecast: Callable[[], Forecast] = handle.forecast

    def lose_server() -> Forecast:
        own_server.stop()
        return forecast()

    handle.forecast = lose_server
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        handle.watch(timeout=0.5)
    assert time.monotonic() - began < 10
    own_server.start()


@pytest.fixture
def live_worker(app: Any, redis_url: str) -> Iterator[None]:
    """A worker lives, and takes nothing."""
    with redis.Redis.from_url(redis_url) as client:
        client.zadd(app.throttle.keys.membership, {"worker": 1e16})
        yield
        client.delete(app.throttle.keys.membership)


@pytest.mark.usefixtures("live_worker")
@pytest.mark.parametrize("paused", [None, 30.0, "for ever"])
def test_a_forecast_of_a_fan_out(app: Any, paused: Any) -> None:
    app.throttle["api"].define("10/s")
    began = time.monotonic()
    for name, count in (("a", 100), ("b", 300)):
        signatures = [app.tasks["one"].s(f"{name} {n}") for n in range(count)]
        app.throttle.fan_out(signatures, name)
    fan_out = app.throttle.fan_out_named("a")
    found = fan_out.forecast()
    assert found.waiting == 100
    assert found.seconds == pytest.approx(20, rel=0.05)  # both share the limit
    # Nobody takes the tasks: half a second later a forecast says that workers are missing.
    assert found.cause == "limit" or time.monotonic() > began + 0.5
    assert app.throttle["api"].forecast().waiting == 400
    if paused is None:
        return
    before_pause = time.monotonic()
    fan_out.pause(*([paused] if paused != "for ever" else []))
    found = fan_out.forecast()
    late = time.monotonic() - before_pause
    if paused == "for ever":
        assert (found.cause, found.limited_by) == ("pause", None)
    else:
        assert found.limited_by == "api" or time.monotonic() > began + 0.5
    assert (found.seconds is None) == (paused == "for ever")
    if found.seconds is not None:  # the tasks of the other fan-out have all started by then
        assert 38 - late < found.seconds < 42
    assert app.throttle.fan_out_named("b").forecast().seconds == pytest.approx(30, rel=0.05)


@pytest.mark.usefixtures("live_worker")
def test_a_forecast_goes_by_weights(app: Any) -> None:
    app.throttle["api"].define("10/s")
    app.throttle["mail"].define("1000/s burst 1000")
    app.throttle["mail", "gold"].define(weight=3)
    for who in ("gold", "other"):
        app.throttle.fan_out([app.tasks["tenant"].s(who, text=str(n)) for n in range(90)], who)
    app.throttle.fan_out([app.tasks["tenant"].s("gold")], "gold more")  # reads the weight again
    assert app.throttle.fan_out_named("gold").forecast().seconds < 15
    assert app.throttle.fan_out_named("other").forecast().seconds == pytest.approx(18, rel=0.06)
