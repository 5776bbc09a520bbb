"""Previews agree with the forecasts after the change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status.definitions import (
    limits_below,
    preview_definition,
    preview_pause,
    preview_reset,
    preview_resume,
)
from celery_throttle.observe.values import Preview
from tests.protocol import SECOND, Protocol

LIMITS = {"api": "1/s", "mail": "10/m burst 3", "day": "100/day using fixed-window"}
API, MAIL, DAY = (LimitRef(name, None) for name in LIMITS)


@pytest.fixture
def lines(redis_url: str) -> Iterator[Protocol]:
    """Fifty tasks wait for `api`, thirty of them for two keys of `mail`, too; ten for `day`."""
    lines = Protocol(redis_url, LIMITS)
    lines.add_worker()
    lines.limiter["api"].try_acquire()
    for number in range(50):
        keys = [("mail", f"k{number % 2}")] if number < 30 else []
        lines.park(f"a{number}", ["api", *keys])
    lines.limiter["day"].acquire_up_to(100)
    for number in range(10):
        lines.park(f"d{number}", ["day"])
    lines.now += SECOND // 10
    yield lines
    lines.close()


def preview(lines: Protocol, plan: Callable[..., Any], *args: Any) -> Preview:
    found: Preview = lines.limiter.run_plan(plan(lines.limiter.observer, *args))
    return found


def end(lines: Protocol, ref: LimitRef) -> float | None:
    return lines.limiter[ref].forecast().seconds


def same(seconds: float | None) -> Any:
    return seconds if seconds is None else pytest.approx(seconds, rel=0.02, abs=0.5)


@pytest.mark.parametrize("ref", [API, MAIL, DAY, LimitRef("mail", "k1")])
@pytest.mark.parametrize("seconds", [30.0, 100_000.0, None])
def test_a_pause(lines: Protocol, ref: LimitRef, seconds: float | None) -> None:
    now = end(lines, ref)
    found = preview(lines, preview_pause, ref, seconds)
    assert found.before is not None
    assert found.after is not None
    assert found.before.seconds == same(now)
    lines.limiter[ref].pause(seconds)
    assert found.after.seconds == same(end(lines, ref))
    assert found.waiting == lines.limiter[ref].forecast().waiting
    resumed = preview(lines, preview_resume, ref)
    assert resumed.after is not None
    assert resumed.after.seconds == same(now)


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (API, "2/s"),
        (API, "1/m"),
        (API, "1/s burst 20"),
        (MAIL, "60/m"),
        (MAIL, "1/m"),
        (LimitRef("mail", "k0"), "1/m"),
        (DAY, "500/day using fixed-window"),
    ],
)
def test_a_definition(lines: Protocol, ref: LimitRef, text: str) -> None:
    found = preview(lines, preview_definition, ref, [Limit.parse(text)])
    lines.limiter[ref].define(text)
    assert found.after is not None
    assert found.after.seconds == same(end(lines, ref))


def test_keys_with_their_own_definition_keep_it(lines: Protocol) -> None:
    lines.limiter["mail", "k0"].define("1/m")
    slow = end(lines, MAIL)
    found = preview(lines, preview_definition, MAIL, [Limit.parse("90/m")])
    assert found.after is not None
    assert found.after.seconds == same(slow)


def test_a_removed_definition(lines: Protocol) -> None:
    observer, before = lines.limiter.observer, end(lines, MAIL)
    lines.limiter["mail"].define("1/m")
    lines.limiter["mail", "k1"].define("5/m")
    below = lines.limiter.run_plan(limits_below(observer, LimitRef("mail", "k1")))
    assert [str(limit) for limit in below] == ["1/m"]
    lines.limiter["mail", "k1"].undefine()
    below = lines.limiter.run_plan(limits_below(observer, MAIL))
    assert [str(limit) for limit in below] == ["10/m burst 3"]
    found = preview(lines, preview_definition, MAIL, below)
    assert found.after is not None
    assert found.after.seconds == same(before)


@pytest.mark.parametrize("ref", [API, MAIL, DAY])
def test_a_reset(lines: Protocol, ref: LimitRef) -> None:
    lines.limiter[ref].pause(50)
    found = preview(lines, preview_reset, ref)
    lines.limiter[ref].reset()
    assert found.after is not None
    assert found.after.seconds == same(end(lines, ref))


def test_nothing_waits(redis_url: str) -> None:
    lines = Protocol(redis_url, LIMITS)
    found = preview(lines, preview_pause, API, 10.0)
    assert found.waiting == 0
    lines.close()


KEY = LimitRef("mail", "k1")


@pytest.mark.parametrize("plan", [preview_resume, preview_reset])
@pytest.mark.parametrize("ref", [MAIL, KEY])
@pytest.mark.parametrize("of_mail", [100.0, 300.0, None])
def test_the_pauses_of_a_limit_and_of_its_keys_are_lifted_separately(
    lines: Protocol, plan: Callable[..., Any], ref: LimitRef, of_mail: float | None
) -> None:
    lines.limiter["mail"].pause(of_mail)
    lines.limiter["mail", "k1"].pause(200)
    found = preview(lines, plan, ref)
    if plan is preview_resume:
        lines.limiter[ref].resume()
    else:
        lines.limiter[ref].reset()
    assert found.after.seconds == same(end(lines, ref))


@pytest.mark.parametrize(
    "old", ["10/m burst 3", "30/m using sliding-log", "30/m using leaky-queue"]
)
@pytest.mark.parametrize(
    "new", ["30/m using fixed-window", "30/m using sliding-window", "30/m using sliding-log"]
)
def test_a_definition_with_another_algorithm(redis_url: str, old: str, new: str) -> None:
    lines, ref = Protocol(redis_url, {"sms": old}), LimitRef("sms", None)
    lines.add_worker()
    lines.limiter["sms"].acquire_up_to(30)
    for number in range(40):
        lines.park(f"s{number}", ["sms"])
    lines.now += SECOND // 10
    found = preview(lines, preview_definition, ref, [Limit.parse(new)])
    lines.limiter["sms"].define(new)
    assert found.after.seconds == same(end(lines, ref))
    lines.close()
