"""Text that is not a limit: the error suggests a limit."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from celery_throttle import Limit, LimitError, LimitSyntaxError, Throttle
from celery_throttle.limits.requirement import parse_limits


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("10 concurrent", "10 at once"),
        ("10 concurrent requests", "10 at once"),
        ("10 parallel", "10 at once"),
        ("10 in parallel", "10 at once"),
        ("10 at a time", "10 at once"),
        ("concurrency=10", "10 at once"),
        ("10 slots", "10 at once"),
        ("10 per second", "10/second"),
        ("10 requests per minute", "10/minute"),
        ("10 requests/s", "10/s"),
        ("100 an hour", "100/hour"),
        ("1 every 500ms", "1/500ms"),
        ("10rps", "10/s"),
        ("4.9/s", "49/10s"),
        ("0.5 / min burst 3", "5/10min burst 3"),
        ("10 RPM", "10/M"),
        ("max 10/s", "10/s"),
        ("5/m burst=10", "5/m burst 10"),
        ("5/m burst: 10", "5/m burst 10"),
        ("5/m 10 burst", "5/m burst 10"),
        ("5/m burst10", "5/m burst 10"),
        ("5/m, burst=10", "5/m burst 10"),
        ("5/m; burst 10, using token-bucket", "5/m burst 10 using token-bucket"),
        ("10at once", "10 at once"),
        ("1,000/h", "1000/h"),
        ("5/day using fixed-window, in America/Los_Angeles", None),
        ("10", None),
        ("unlimited", None),
        ("10 per fortnight", None),
        ("10/s per user", None),
        ("", None),
    ],
)
def test_one_limit(text: str, limit: str | None) -> None:
    with pytest.raises(LimitError) as caught:
        Limit.parse(text)
    told = str(caught.value)
    if limit is None:
        assert "write" not in told
    else:
        assert repr(text) in told
        assert told.endswith(f"; write {limit!r}")
        Limit.parse(limit)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("10/s, 1000/h", ["10/s", "1000/h"]),
        ("10/s,1,000/h", ["10/s", "1000/h"]),
        ("10/s burst 5; 2 concurrent", ["10/s burst 5", "2 at once"]),
        ("10/s and 1000/h", ["10/s", "1000/h"]),
        ("10 per second + 2 at once", ["10/second", "2 at once"]),
    ],
)
def test_several_limits(text: str, limits: list[str]) -> None:
    with pytest.raises(LimitSyntaxError, match=r"^limit 'api': ") as caught:
        parse_limits(text, "api")
    assert repr(text) in str(caught.value)
    assert str(caught.value).endswith(f"; write the list {limits}")
    assert len(parse_limits(limits, "api")) == 2


def test_what_is_right_but_out_of_range_is_told_as_such() -> None:
    with pytest.raises(LimitError, match=re.escape("'0/s': count 0 is out of range")):
        Limit.parse("0/s")


def test_in_the_limits_of_an_app() -> None:
    with Celery("shop", set_as_current=False) as app, pytest.raises(LimitSyntaxError) as caught:
        Throttle(app, {"stripe": "10/s, 1000/h"})
    assert str(caught.value) == (
        "limit 'stripe': '10/s, 1000/h' is not a rate; write the list ['10/s', '1000/h']"
    )
