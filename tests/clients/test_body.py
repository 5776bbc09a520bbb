"""Bodies that are watched while they pass on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from celery_throttle.clients.calls import body as body_module
from celery_throttle.clients.calls.body import WatchedBody
from celery_throttle.clients.profiles.models import ANTHROPIC, GOOGLE, OPENAI

STREAM = {"content-type": "text/event-stream; charset=utf-8"}
CHUNKS = [
    {"choices": [{"delta": {"content": "hi"}}], "usage": None},
    {"choices": [], "usage": {"total_tokens": 21}},
]


def events(*documents: Any, end: str = "\n\n") -> bytes:
    return "".join(f"event: x\ndata: {json.dumps(one)}{end}" for one in documents).encode()


def units(
    raw: bytes, headers: Mapping[str, str], usage: Any = OPENAI.usage, size: int = 7
) -> Mapping[str, float]:
    watched = WatchedBody(headers, usage)
    for start in range(0, len(raw), size):
        watched.feed(raw[start : start + size])
    return watched.end()


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_the_usage_of_a_stream(size: int, end: str) -> None:
    raw = events(*CHUNKS, end=end) + b"data: [DONE]\n\n"
    assert units(raw, STREAM, size=size) == {"tokens": 21}


def test_the_usage_of_a_document() -> None:
    raw = json.dumps({"usage": {"total_tokens": 5}}).encode()
    assert units(raw, {"content-type": "application/json"}) == {"tokens": 5}


@pytest.mark.parametrize("headers", [STREAM, {}])
def test_a_body_that_is_compressed(headers: Mapping[str, str]) -> None:
    raw = events(*CHUNKS) if headers else json.dumps(CHUNKS[1]).encode()
    encoded = {**headers, "content-encoding": "gzip"}
    assert units(gzip.compress(raw), encoded) == {"tokens": 21}


def test_the_last_event_that_tells_a_quantity_counts() -> None:
    raw = events(
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 30}},
        {"type": "message_stop"},
    )
    assert units(raw, STREAM, ANTHROPIC.usage) == {"input_tokens": 9, "output_tokens": 30}


def test_a_stream_that_is_a_list() -> None:
    raw = json.dumps([{"usageMetadata": {"totalTokenCount": n}} for n in (3, 8)]).encode()
    assert units(raw, {}, GOOGLE.usage)["tokens"] == 8


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b"", {}),
        (b"<html>", {}),
        (b"[1, null]", {}),
        (b"\xff\xfe", STREAM),
        (b"data: {no\n\n", STREAM),
        (b"not gzip", {"content-encoding": "gzip"}),
        (b"zstd", {"content-encoding": "zstd"}),
    ],
)
def test_a_body_that_tells_nothing(raw: bytes, headers: Mapping[str, str]) -> None:
    assert units(raw, headers) == {}


def test_a_document_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_DOCUMENT_BYTES", 10)
    assert units(json.dumps({"usage": {"total_tokens": 5}}).encode(), {}) == {}
