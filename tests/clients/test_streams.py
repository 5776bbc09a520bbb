"""Answers that are streamed, with usage to settle, through the transports of each HTTP client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle import Limiter
from celery_throttle.clients.profiles.models import OPENAI
from tests.clients.api import HTTP, Client
from tests.clients.vendors import OpenAI as Api
from tests.clients.vendors import Reply

LIMITS = {"tokens": "1000/d burst 1000", "pool": "2 at once"}
WORD = ("", {"choices": [{"delta": {"content": "hi"}}], "usage": None})
DONE = ("", "[DONE]")

every = pytest.mark.parametrize("kind", HTTP)


def usage(tokens: int) -> tuple[str, Any]:
    return "", {"choices": [], "usage": {"total_tokens": tokens}}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api({"requests": 60_000})
    yield api
    api.close()


@pytest.fixture
def client(kind: type[Client], api: Api, limiter: Limiter) -> Iterator[Client]:
    """A client whose calls hold a slot, and cost an estimate of 400 tokens."""
    limits = {"tokens": limiter["tokens"], "requests": limiter["pool"]}
    client = kind(api.url, limits, profile=OPENAI, cost={"tokens": 400})
    yield client
    client.close()


def used(limiter: Limiter) -> tuple[int, int]:
    """Tokens and slots in use."""
    return 1000 - limiter["tokens"].peek(0).remaining, 2 - limiter["pool"].peek(0).remaining


@every
def test_a_stream_passes_on_before_its_end_and_is_settled_there(
    client: Client, api: Api, limiter: Limiter
) -> None:
    is_read = threading.Event()

    def events() -> Iterator[tuple[str, Any]]:
        yield WORD
        yield ("", "[NO MORE]") if not is_read.wait(30) else WORD
        yield usage(150)
        yield DONE

    api.replies = [Reply(events=events())]
    with client.streamed() as body:
        first = next(body.pieces)
        assert b"hi" in first
        assert used(limiter) == (400, 1)
        is_read.set()
        rest = b"".join(body.pieces)
        assert b"hi" in rest
        assert rest.endswith(b"[DONE]\n\n")
    assert used(limiter) == (150, 0)


@every
def test_a_stream_that_is_read_at_once_is_settled(
    client: Client, api: Api, limiter: Limiter
) -> None:
    api.replies = [Reply(events=[WORD, usage(150), DONE])]
    with client.streamed() as body:
        assert body.read().endswith(b"[DONE]\n\n")
    assert used(limiter) == (150, 0)


@every
@pytest.mark.parametrize(("first", "tokens"), [(WORD, 400), (usage(30), 30)])
def test_a_stream_that_is_closed_early_costs_what_it_has_told_or_its_estimate(
    client: Client, api: Api, limiter: Limiter, first: tuple[str, Any], tokens: int
) -> None:
    is_closed = threading.Event()

    def events() -> Iterator[tuple[str, Any]]:
        yield first
        is_closed.wait(30)

    api.replies = [Reply(events=events())]
    with client.streamed() as body:
        assert next(body.pieces)
        assert used(limiter) == (400, 1)
    is_closed.set()
    assert used(limiter) == (tokens, 0)
