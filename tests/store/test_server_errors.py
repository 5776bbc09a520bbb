from __future__ import annotations

import pytest

from celery_throttle.store.server_errors import ErrorReply, Remedy

WRAPPED = "ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4a63f7d2c3c8d7c2): "


@pytest.mark.parametrize(
    ("text", "code", "remedy"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", "NOSCRIPT", Remedy.LOAD),
        (
            "READONLY You can't write against a read only replica.",
            "READONLY",
            Remedy.ANOTHER_SERVER,
        ),
        (
            WRAPPED + "@user_script:1: @user_script: 1: -OOM command not allowed",
            "OOM",
            Remedy.FREE_MEMORY,
        ),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "TRYAGAIN", Remedy.RETRY),
        ("ASK 3999 127.0.0.1:6381", "ASK", Remedy.RETRY),
        (WRAPPED + "@user_script:9: @user_script: 9: wrong type", "ERR", Remedy.NONE),
        ("ERR value is not an integer", "ERR", Remedy.NONE),
        ("OOMPH", "OOMPH", Remedy.NONE),
        ("", "", Remedy.NONE),
    ],
)
def test_what_an_error_means(text: str, code: str, remedy: Remedy) -> None:
    refusal = ErrorReply(text)
    assert (refusal.code, refusal.remedy) == (code, remedy)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("MOVED 3999 127.0.0.1:6381", "127.0.0.1", 6381),
        ("MOVED 3999 node.example:6381", "node.example", 6381),
        ("MOVED 3999 2001:db8::7:6381", "2001:db8::7", 6381),
        ("MOVED 3999 :6381", "", 6381),
        ("MOVED 3999 ?:6381", "", 6381),
    ],
)
def test_where_a_redirection_points_to(text: str, host: str, port: int) -> None:
    assert ErrorReply(text).redirect == (host, port)


def test_an_error_that_tells_what_to_do() -> None:
    assert str(ErrorReply("OOM command not allowed")).endswith(
        "(free memory there, or raise its maxmemory)"
    )
    assert str(ErrorReply("ERR no such thing")) == "ERR no such thing"
