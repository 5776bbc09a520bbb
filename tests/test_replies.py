from __future__ import annotations

import pytest

from celery_throttle.store.server_errors import Means, Refusal

WRAPPED = "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4a63f7d2c3c8d7c2): "


@pytest.mark.parametrize(
    ("text", "code", "means"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", "NOSCRIPT", Means.LOAD),
        ("READONLY You can't write against a read only replica.", "READONLY", Means.ELSEWHERE),
        (WRAPPED + "@user_script:1: @user_script: 1: -OOM command not allowed", "OOM", Means.FULL),
        (WRAPPED + "@user_script:9: @user_script: 9: wrong type", "ERR", Means.NEVER),
        ("ERR value is not an integer", "ERR", Means.NEVER),
        ("OOMPH", "OOMPH", Means.NEVER),
        ("", "", Means.NEVER),
    ],
)
def test_what_an_error_means(text: str, code: str, means: Means) -> None:
    refusal = Refusal(text)
    assert (refusal.code, refusal.means) == (code, means)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("MOVED 3999 127.0.0.1:6381", "127.0.0.1", 6381),
        ("ASK 3999 node.example:6381", "node.example", 6381),
        ("MOVED 3999 2001:db8::7:6381", "2001:db8::7", 6381),
        ("MOVED 3999 :6381", "", 6381),
        ("MOVED 3999 ?:6381", "", 6381),
    ],
)
def test_where_a_redirection_points_to(text: str, host: str, port: int) -> None:
    assert Refusal(text).redirect == (host, port)


def test_an_error_that_tells_what_to_do() -> None:
    assert str(Refusal("OOM command not allowed")).endswith(
        "(free memory there, or raise its maxmemory)"
    )
    assert str(Refusal("ERR no such thing")) == "ERR no such thing"
