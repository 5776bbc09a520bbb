"""google-genai against a server that enforces what Google documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from google import genai
from google.genai.errors import ClientError
from google.genai.types import HttpOptions, HttpRetryOptions

from celery_throttle import Limiter, Throttled, throttled
from tests.clients.vendors import Reply, Vendor

LIMITS = {
    "requests": "1000/d burst 2",
    "tokens": "100000/d burst 10000",
}


class Gemini(Vendor):
    """Models. The prompt says how many tokens an answer uses in all."""

    def request_of(self, http: BaseHTTPRequestHandler, body: bytes) -> dict[str, Any]:
        return {**super().request_of(http, body), "path": http.path}

    def charges(self, request: dict[str, Any]) -> dict[str, float]:
        return {"requests": 1, "tokens": self.tokens(request)}

    @staticmethod
    def tokens(request: dict[str, Any]) -> int:
        return int(request["contents"][0]["parts"][0]["text"].split()[0])

    def refusal(self, name: str, wait: float) -> Reply:
        return refusal(f"Generate{name.title()}PerMinutePerProject", wait)

    def success(self, request: dict[str, Any]) -> Reply:
        total = self.tokens(request)
        content = {"role": "model", "parts": [{"text": "hi"}]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": total - 1, "totalTokenCount": total}
        body = {"candidates": [{"content": content}], "usageMetadata": usage}
        if "stream" in request["path"]:
            return Reply(200, None, {}, [("", body), ("", body)])
        return Reply(200, body)


def refusal(quota: str, wait: float) -> Reply:
    kind = "type.googleapis.com/google.rpc"
    details = [
        {"@type": f"{kind}.QuotaFailure", "violations": [{"quotaId": quota}]},
        {"@type": f"{kind}.RetryInfo", "retryDelay": f"{wait:.3f}s"},
    ]
    error = {"code": 429, "message": "no", "status": "RESOURCE_EXHAUSTED", "details": details}
    return Reply(429, {"error": error})


@pytest.fixture
def api() -> Iterator[Gemini]:
    api = Gemini({"requests": 60_000, "tokens": 6_000_000})
    yield api
    api.close()


def make(api: Gemini, limiter: Limiter, **options: Any) -> genai.Client:
    repeats = options.pop("retry_options", None)
    plain = genai.Client(
        api_key="x", http_options=HttpOptions(base_url=api.url, retry_options=repeats)
    )
    limits = {"requests": limiter["requests"], "tokens": limiter["tokens"]}
    return throttled(plain, limits, **options)


def taken(limiter: Limiter) -> tuple[float, float]:
    return 2 - limiter["requests"].peek(0).remaining, 10_000 - limiter["tokens"].peek(0).remaining


def test_a_call_costs_what_it_has_used(api: Gemini, limiter: Limiter) -> None:
    answer = make(api, limiter).models.generate_content(model="m", contents="200 tokens")
    assert answer.text == "hi"
    assert taken(limiter) == (1, 200)


def test_a_stream_costs_what_it_has_used(api: Gemini, limiter: Limiter) -> None:
    for _ in make(api, limiter).models.generate_content_stream(model="m", contents="200 tokens"):
        pass
    assert taken(limiter) == (1, 200)


async def test_asyncio(api: Gemini, limiter: Limiter) -> None:
    client = make(api, limiter)
    await client.aio.models.generate_content(model="m", contents="200 tokens")
    async for _ in await client.aio.models.generate_content_stream(model="m", contents="300 t"):
        pass
    assert await asyncio.to_thread(taken, limiter) == (2, 500)
    with pytest.raises(Throttled):
        await client.aio.models.generate_content(model="m", contents="200 tokens")
    await client.aio.aclose()
    await limiter.store.aclose()


def test_what_the_limit_refuses_is_not_sent(api: Gemini, limiter: Limiter) -> None:
    client = make(api, limiter, retry_options=HttpRetryOptions(attempts=3))
    for _ in range(2):
        client.models.generate_content(model="m", contents="1 token")
    with pytest.raises(Throttled):
        client.models.generate_content(model="m", contents="1 token")
    assert len(api.log) == 2


def test_a_refusal_pauses_the_quantity_that_refused(api: Gemini, limiter: Limiter) -> None:
    api.replies = [refusal("GenerateContentInputTokensPerModelPerMinute", 30)]
    with pytest.raises(ClientError) as caught:
        make(api, limiter, retry_refused=0).models.generate_content(model="m", contents="1 token")
    assert caught.value.code == 429
    assert limiter["requests"].peek().allowed
    assert 29 < (limiter["tokens"].peek().retry_after or 0) <= 30


def test_a_refused_call_is_sent_again(api: Gemini, limiter: Limiter) -> None:
    api.replies = [refusal("GenerateRequestsPerDay", 0.1)]
    make(api, limiter).models.generate_content(model="m", contents="1 token")
    assert api.statuses() == [429, 200]


def test_a_client_of_the_newer_resources(api: Gemini, limiter: Limiter) -> None:
    client = make(api, limiter)
    for _ in range(2):
        client.models.generate_content(model="m", contents="1 token")
    with pytest.raises(Throttled):
        client.interactions.create(model="m", input="hello")
    assert len(api.log) == 2


def test_vertex_ai_keeps_its_settings(limiter: Limiter, api: Gemini) -> None:
    plain = genai.Client(
        vertexai=True, api_key="x", http_options=HttpOptions(base_url=api.url, timeout=5000)
    )
    client = throttled(plain, limiter["requests"])
    assert client.vertexai
    client.models.generate_content(model="m", contents="1 token")
    assert len(api.log) == 1
