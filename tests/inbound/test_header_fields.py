"""The header fields of limits, without a server."""

from __future__ import annotations

import re

import pytest

from celery_throttle.errors import StoreError, Throttled
from celery_throttle.inbound.answers import Policies, answer_to, whole_seconds
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.requirement import LimitsLike, parse_definitions

#: A list of strings with parameters (RFC 9651), as far as these fields use it.
_ITEM = r'"[\x20-\x21\x23-\x5b\x5d-\x7e]*"(;[a-z]+=(\d{1,15}|"[a-z-]+"))*'
FIELD = re.compile(rf"{_ITEM}(, {_ITEM})*")


def allowed(limit: int, remaining: int, reset_after: float = 0.0) -> Decision:
    return Decision(True, limit, remaining, 0.0, reset_after, None)  # noqa: FBT003


def told(policies: Policies, decision: Decision) -> dict[str, str]:
    fields = dict(policies.fields(decision))
    for name in ("RateLimit", "RateLimit-Policy"):
        assert name not in fields or FIELD.fullmatch(fields[name])
    return fields


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("100/s burst 20", '"api";q=100;w=1'),
        ("10/m", '"api";q=10;w=60'),
        ("5000/day using fixed-window", '"api";q=5000;w=86400'),
        ("1/500ms", '"api";q=2;w=1'),
        ("3/700ms", '"api";q=30;w=7'),
        ("5/1500ms", '"api";q=10;w=3'),
        ("1/us", '"api";q=1000000;w=1'),
        ("1000000000/us", '"api";q=999999999999999;w=1'),
        ("10 at once", '"api";q=10;qu="concurrent-requests"'),
        (["5/h", "2 at once"], '"api";q=5;w=3600, "api";q=2;qu="concurrent-requests"'),
    ],
)
def test_policies(written: LimitsLike, text: str) -> None:
    policies = Policies(parse_definitions({"api": written}))
    assert policies.text == text
    assert FIELD.fullmatch(text)


def test_which_of_several_allowed_is_told_only_if_it_is_known() -> None:
    limits = {"a": "1/s burst 5", "b": "1/s burst 7", "c": ["1/s burst 7", "1/m burst 9"]}
    policies = Policies(parse_definitions(limits))
    assert told(policies, allowed(5, 3, 1.2))["RateLimit"] == '"a";r=3;t=2'
    assert told(policies, allowed(9, 3))["RateLimit"] == '"c";r=3;t=0'
    assert "RateLimit" not in told(policies, allowed(7, 3))
    assert told(policies, allowed(7, 3))["X-RateLimit-Limit"] == "7"
    assert "RateLimit-Policy" in told(policies, allowed(7, 3))
    assert "RateLimit-Policy" not in told(policies, allowed(6, 3))  # redefined at run time


@pytest.mark.parametrize(
    ("limit", "decision", "seconds"),
    [
        ("30/m burst 3", allowed(3, 0, 5.9), 2),
        ("30/m burst 3", allowed(3, 2, 1.9), 2),
        ("30/m burst 3", allowed(3, 3, 0.0), 0),
        ("30/m burst 3", allowed(7, 0, 5.9), 6),  # redefined at run time
        ("100/s burst 20", allowed(20, 19, 0.01), 1),
        ("30/m using fixed-window", allowed(30, 0, 42), 42),
    ],
)
def test_when_there_is_more(limit: str, decision: Decision, seconds: int) -> None:
    fields = told(Policies(parse_definitions({"a": limit})), decision)
    assert fields["RateLimit"] == f'"a";r={decision.remaining};t={seconds}'


def test_no_client_is_told_to_come_before_it_can_pass() -> None:
    policies = Policies(parse_definitions({"a": "1/s burst 5"}))
    paused = Decision(False, 5, 5, 29.1, 0.0, "a")  # noqa: FBT003
    assert told(policies, paused)["RateLimit"] == '"a";r=5;t=30'
    assert told(policies, paused)["X-RateLimit-Reset"] == "30"


@pytest.mark.parametrize(
    ("wait", "seconds"), [(None, 1), (0.0, 1), (0.000001, 1), (1.0, 1), (1.000001, 2), (60, 60)]
)
def test_waits_are_rounded_up(wait: float | None, seconds: int) -> None:
    assert whole_seconds(wait) == seconds


def test_answers_to_errors() -> None:
    refused = answer_to(Throttled("web", "key", 1.5))
    assert (refused.status, refused.status_line) == (429, "429 Too Many Requests")
    assert refused.retry_after == 2
    assert b"key" not in refused.body
    assert answer_to(StoreError("gone")).status_line == "503 Service Unavailable"
    assert [name for name, _ in refused.bodyless_headers] == ["Cache-Control", "Retry-After"]
