"""Clients of SDKs against servers that enforce what the vendors document."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from celery_throttle import (
    Limiter,
    LimitFunctionError,
    LimitValueError,
    StoreUnavailableError,
    Throttled,
    throttled,
)
from celery_throttle.clients.profiles import (
    AZURE_OPENAI,
    DEEPSEEK,
    GROQ,
    MISTRAL,
    OPENAI,
    TOGETHER,
)
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.clients.sdks.http import openai_profile
from tests.clients.vendors import Anthropic, OpenAI, Reply

LIMITS = {
    "requests": "1000/d burst 50",
    "tokens": "5000/d burst 10000",
    "input": "5000/d burst 10000",
    "output": "5000/d burst 10000",
    "pool": "2 at once",
}
OVERLOADED = Reply(529, {"type": "error", "error": {"type": "overloaded_error"}})


@pytest.fixture
def openai_api() -> Iterator[OpenAI]:
    api = OpenAI({"requests": 60_000, "tokens": 6_000_000})
    yield api
    api.close()


@pytest.fixture
def anthropic_api() -> Iterator[Anthropic]:
    quantities = ("requests", "input-tokens", "output-tokens")
    api = Anthropic(dict.fromkeys(quantities, 6_000_000))
    yield api
    api.close()


def of_openai(limiter: Limiter) -> dict[str, Any]:
    return {"requests": limiter["requests"], "tokens": limiter["tokens"]}


def of_anthropic(limiter: Limiter) -> dict[str, Any]:
    return {
        "requests": limiter["requests"],
        "input_tokens": limiter["input"],
        "output_tokens": limiter["output"],
    }


def make_openai(api: OpenAI, limits: Any, **options: Any) -> openai.OpenAI:
    return throttled(openai.OpenAI(api_key="x", base_url=f"{api.url}/v1"), limits, **options)


def make_anthropic(api: Anthropic, limits: Any, **options: Any) -> anthropic.Anthropic:
    return throttled(anthropic.Anthropic(api_key="x", base_url=api.url), limits, **options)


def chat(client: Any, tokens: int = 200, most: int = 1000, **options: Any) -> Any:
    """Ask for an answer that uses a number of tokens in all."""
    messages: Any = [{"role": "user", "content": f"{tokens} tokens"}]
    return client.chat.completions.create(model="m", messages=messages, max_tokens=most, **options)


def talk(client: Any, text: str = "100 in 20 out", **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.messages.create(model="m", max_tokens=500, messages=messages, **options)


def taken(limiter: Limiter, name: str) -> float:
    """Units that are in use, of which none comes back within a test."""
    burst = int(LIMITS[name].split()[-1])
    return burst - limiter[name].peek(0).remaining


def test_a_call_costs_what_it_has_used(openai_api: OpenAI, limiter: Limiter) -> None:
    client = make_openai(openai_api, of_openai(limiter))
    assert isinstance(client, openai.OpenAI)
    assert chat(client).usage.total_tokens == 200
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (1, 200)


@pytest.mark.parametrize(
    ("limits", "wrong"), [(lambda _: 3, "returned 3"), (lambda _: int("gold"), "raised ValueError")]
)
def test_the_error_of_a_function_leaves_the_sdk_as_it_is(
    openai_api: OpenAI, limits: Any, wrong: str
) -> None:
    with pytest.raises(LimitFunctionError, match=wrong):
        chat(make_openai(openai_api, limits))
    assert not openai_api.log


def test_so_does_the_loss_of_the_limits_server(openai_api: OpenAI) -> None:
    limiter = Limiter("redis://127.0.0.1:1/0", LIMITS)
    with pytest.raises(StoreUnavailableError):
        chat(make_openai(openai_api, limiter["requests"]))
    assert not openai_api.log


def test_an_estimate_is_reserved_while_a_call_lasts(openai_api: OpenAI, limiter: Limiter) -> None:
    seen = []
    openai_api.trouble = lambda _: seen.append(taken(limiter, "tokens"))
    chat(make_openai(openai_api, of_openai(limiter)))
    assert 1000 <= seen[0] <= 1010


@pytest.mark.parametrize("most", [100, 1000])
def test_a_stream_costs_what_it_has_used(openai_api: OpenAI, limiter: Limiter, most: int) -> None:
    client = make_openai(openai_api, of_openai(limiter))
    began, first = time.monotonic(), 0.0
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    for _ in chat(client, 300, most, **options):
        first = first or time.monotonic() - began
    assert first < time.monotonic() - began - 0.1  # it was not held back
    assert taken(limiter, "tokens") == 300


def test_a_stream_that_does_not_tell_its_usage_keeps_its_estimate(
    openai_api: OpenAI, limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    list(chat(make_openai(openai_api, of_openai(limiter)), stream=True))
    assert taken(limiter, "tokens") >= 1000
    assert "does not tell the true cost of a call: its estimate stands" in caplog.text


def test_a_stream_that_is_closed_early_ends_its_call(openai_api: OpenAI, limiter: Limiter) -> None:
    limits = {"requests": [limiter["requests"], limiter["pool"]], "tokens": limiter["tokens"]}
    stream = chat(make_openai(openai_api, limits), stream=True)
    next(iter(stream))
    assert limiter["pool"].peek(0).remaining == 1
    stream.close()
    assert limiter["pool"].peek(0).remaining == 2


@pytest.mark.parametrize("make", [openai.OpenAI, anthropic.Anthropic])
def test_it_is_closed_as_a_copy_of_the_sdk_is(limiter: Limiter, make: Any) -> None:
    for copied in (lambda client: throttled(client, limiter["requests"]), make.with_options):
        client = make(api_key="x")
        copied(client).close()
        assert client.is_closed()


def test_asyncio(openai_api: OpenAI, limiter: Limiter) -> None:
    async def calls() -> None:
        plain = openai.AsyncOpenAI(api_key="x", base_url=f"{openai_api.url}/v1")
        client = throttled(plain, of_openai(limiter))
        await asyncio.gather(*(chat(client, 100, 200) for _ in range(20)))
        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        async for _ in await chat(client, 300, **options):
            pass
        with pytest.raises(Throttled):
            await chat(client, 100, 9_900)
        await client.close()
        await limiter.store.aclose()

    asyncio.run(calls())
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (21, 2300)


def test_requests_have_what_the_http_client_adds(openai_api: OpenAI, limiter: Limiter) -> None:
    seen: list[Any] = []

    def limits(request: Any) -> Any:
        seen.append(request)
        return limiter["requests"]

    http_client = openai.DefaultHttpxClient(
        headers={"x-company": "acme"}, params={"team": "a"}, cookies={"session": "s"}
    )
    base_url = f"{openai_api.url}/v1"
    client = openai.OpenAI(api_key="x", base_url=base_url, http_client=http_client)
    chat(throttled(client, limits))
    assert seen[0].headers["x-company"] == "acme"
    assert seen[0].headers["cookie"] == "session=s"
    assert seen[0].url.params["team"] == "a"


def test_a_subclass_for_asyncio_may_have_any_name(openai_api: OpenAI, limiter: Limiter) -> None:
    class Company(openai.AsyncOpenAI):
        """The client of a company."""

    async def call() -> None:
        client = throttled(
            Company(api_key="x", base_url=f"{openai_api.url}/v1"), of_openai(limiter)
        )
        with pytest.raises(Throttled):
            await chat(client, 100, 9_000)
        await client.close()
        await limiter.store.aclose()

    limiter["tokens"].acquire(9_000)
    asyncio.run(call())


def test_with_raw_response_and_options(openai_api: OpenAI, limiter: Limiter) -> None:
    client = make_openai(openai_api, of_openai(limiter)).with_options(timeout=5)
    messages: Any = [{"role": "user", "content": "70 tokens"}]
    raw = client.chat.completions.with_raw_response.create(model="m", messages=messages)
    assert raw.parse().usage
    assert taken(limiter, "tokens") == 70


def test_a_refusal_of_the_limit_leaves_the_sdk_as_it_is(
    openai_api: OpenAI, limiter: Limiter
) -> None:
    client = make_openai(openai_api, of_openai(limiter))
    limiter["tokens"].pause(60)
    for one in (client, client.with_options(max_retries=5), client.copy()):
        with pytest.raises(Throttled) as caught:
            chat(one)
        assert caught.value.limit == "tokens"
    assert openai_api.log == []


def test_each_attempt_of_the_sdk_counts(openai_api: OpenAI, limiter: Limiter) -> None:
    openai_api.replies = [Reply(500, {}), Reply(500, {})]
    chat(make_openai(openai_api, of_openai(limiter)))
    assert openai_api.statuses() == [500, 500, 200]
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (3, 200)


def test_a_refused_call_is_sent_again_after_the_pause(openai_api: OpenAI, limiter: Limiter) -> None:
    openai_api.replies = [openai_api.refusal("tokens", 0.3)]
    began = time.monotonic()
    chat(make_openai(openai_api, of_openai(limiter)))
    assert time.monotonic() - began >= 0.3
    # OpenAI counts a request that it refuses.
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (2, 200)


def test_only_the_quantity_that_refused_pauses(
    openai_api: OpenAI, limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    openai_api.replies = [openai_api.refusal("tokens", 60)]
    client = make_openai(openai_api, of_openai(limiter), retry_refused=0)
    with pytest.raises(openai.RateLimitError):
        chat(client)
    assert limiter["tokens"].peek(0).retry_after
    assert not limiter["requests"].peek(0).retry_after
    (logged,) = [record.message for record in caplog.records if "a pause" in record.message]
    assert logged.startswith("The API behind 'tokens' asks for a pause: no calls for ")


def test_an_error_about_money_pauses_nobody(openai_api: OpenAI, limiter: Limiter) -> None:
    """And the SDK does not send it again, as it would by default."""
    openai_api.replies = [Reply(429, {"error": {"code": "insufficient_quota"}})] * 9
    with pytest.raises(openai.RateLimitError):
        chat(make_openai(openai_api, of_openai(limiter)))
    assert openai_api.statuses() == [429]
    assert not limiter["tokens"].peek(0).retry_after
    assert taken(limiter, "tokens") == 0


@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_call_that_fails_costs_a_request_only(
    openai_api: OpenAI, limiter: Limiter, status: int
) -> None:
    openai_api.replies = [Reply(status, {"error": {"message": "no"}})]
    with pytest.raises(openai.APIStatusError):
        chat(make_openai(openai_api, of_openai(limiter)).with_options(max_retries=0))
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (1, 0)


def test_a_call_without_an_answer_costs_a_request_only(
    openai_api: OpenAI, limiter: Limiter
) -> None:
    client = make_openai(openai_api, of_openai(limiter)).with_options(max_retries=0)
    openai_api.close()
    with pytest.raises(openai.APIConnectionError):
        chat(client)
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (1, 0)


def test_remaining_units_of_the_api_tighten_each_limit(
    openai_api: OpenAI, limiter: Limiter
) -> None:
    openai_api.trouble = lambda request: Reply(
        200,
        openai_api.success(request).body,
        {
            "x-ratelimit-remaining-tokens": "0",
            "x-ratelimit-reset-tokens": "1m0s",
            "x-ratelimit-remaining-requests": "40",
        },
    )
    chat(make_openai(openai_api, of_openai(limiter)))
    assert limiter["requests"].peek(0).remaining == 40
    assert limiter["tokens"].peek(0).remaining <= 1000
    assert not limiter["tokens"].peek(0).paused  # its tokens come back one by one


def test_the_three_limits_of_anthropic(anthropic_api: Anthropic, limiter: Limiter) -> None:
    client = make_anthropic(anthropic_api, of_anthropic(limiter))
    talk(client)
    assert [taken(limiter, name) for name in ("requests", "input", "output")] == [1, 100, 20]
    messages: Any = [{"role": "user", "content": "50 in 30 out"}]
    with client.messages.stream(model="m", max_tokens=500, messages=messages) as stream:
        assert list(stream.text_stream) == ["hi"]
    assert [taken(limiter, name) for name in ("requests", "input", "output")] == [2, 150, 50]


def test_the_tokens_of_anthropic_settle(anthropic_api: Anthropic, limiter: Limiter) -> None:
    talk(make_anthropic(anthropic_api, {"tokens": limiter["tokens"]}))
    assert taken(limiter, "tokens") == 120


def test_a_request_without_an_estimate_is_sent(
    anthropic_api: Anthropic, openai_api: OpenAI, limiter: Limiter
) -> None:
    anthropic_api.replies = [Reply(200, {"input_tokens": 14})]
    messages: Any = [{"role": "user", "content": "hi"}]
    counted = make_anthropic(anthropic_api, of_anthropic(limiter)).messages.count_tokens(
        model="m", messages=messages
    )
    assert counted.input_tokens == 14
    openai_api.replies = [Reply(200, {"id": "1", "object": "vector_store"})]
    client = make_openai(openai_api, of_openai(limiter))
    assert client.post("/vector_stores", body={"name": "x"}, cast_to=object)
    assert [taken(limiter, name) for name in ("output", "tokens")] == [1, 1]


def test_anthropic_with_asyncio(anthropic_api: Anthropic, limiter: Limiter) -> None:
    async def calls() -> None:
        plain = anthropic.AsyncAnthropic(api_key="x", base_url=anthropic_api.url)
        client = throttled(plain, of_anthropic(limiter))
        await asyncio.gather(*(talk(client) for _ in range(5)))
        limiter["input"].pause(60)
        with pytest.raises(Throttled):
            await talk(client)
        await client.close()
        await limiter.store.aclose()

    asyncio.run(calls())
    assert [taken(limiter, name) for name in ("requests", "output")] == [5, 100]


def test_an_overload_is_not_sent_again_by_the_sdk(
    anthropic_api: Anthropic, limiter: Limiter
) -> None:
    anthropic_api.replies = [OVERLOADED] * 9
    client = make_anthropic(anthropic_api, of_anthropic(limiter), retry_refused=0)
    with pytest.raises(anthropic.APIStatusError):
        talk(client)
    assert anthropic_api.statuses() == [529]
    paused = [limiter[name].peek(0).paused for name in ("requests", "input")]
    assert all(0.5 < (pause or 0) <= 1 for pause in paused)
    limiter.resume_all()
    assert [taken(limiter, name) for name in ("requests", "input")] == [1, 0]


def test_limits_by_the_request(openai_api: OpenAI, limiter: Limiter) -> None:
    def limits(request: Any) -> dict[str, Any]:
        tenant = request.headers["x-tenant"]
        return {"requests": limiter["requests"], "tokens": limiter["tokens", tenant]}

    client = make_openai(openai_api, limits)
    chat(client, extra_headers={"x-tenant": "acme"})
    assert limiter["tokens", "acme"].peek(0).remaining == 10_000 - 200
    assert limiter["tokens", "other"].peek(0).remaining == 10_000


def test_a_client_that_is_not_known(limiter: Limiter) -> None:
    with pytest.raises(LimitValueError, match=r"throttled\(\) knows; allowed: .*openai"):
        throttled(httpx.Client(), limiter["requests"])


def test_a_misspelt_quantity_is_an_error(openai_api: OpenAI, limiter: Limiter) -> None:
    """Its limit would take one unit of each request, and hold nothing."""
    limits = {"requests": limiter["requests"], "token": limiter["tokens"]}
    with pytest.raises(LimitValueError, match="'token' is no quantity of OpenAI; write 'tokens'"):
        make_openai(openai_api, limits)
    by_request = make_openai(openai_api, lambda _: limits)
    with pytest.raises(LimitFunctionError, match="'token' is no quantity of OpenAI"):
        chat(by_request)
    assert openai_api.requests == []
    chat(make_openai(openai_api, limits, cost={"requests": 1, "token": 500}))
    assert taken(limiter, "tokens") == 500


def test_the_cost_of_a_quantity_without_a_limit_is_an_error(
    openai_api: OpenAI, limiter: Limiter
) -> None:
    why = "cost names 'token', which is no quantity of the limits; write 'tokens'"
    with pytest.raises(LimitValueError, match=why):
        make_openai(openai_api, of_openai(limiter), cost={"token": 5})
    client = make_openai(openai_api, of_openai(limiter), cost=lambda _: {"token": 5})
    with pytest.raises(LimitFunctionError, match=why):
        chat(client)
    assert openai_api.requests == []


def test_a_call_that_times_out_costs_a_request_only(openai_api: OpenAI, limiter: Limiter) -> None:
    answered = threading.Event()
    openai_api.trouble = lambda _: None if answered.wait(30) else Reply(500)
    client = make_openai(openai_api, of_openai(limiter)).with_options(max_retries=0, timeout=0.2)
    with pytest.raises(openai.APITimeoutError):
        chat(client)
    answered.set()
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (1, 0)


def test_a_call_that_is_cancelled_costs_a_request_only(
    openai_api: OpenAI, limiter: Limiter
) -> None:
    sent, answered = threading.Event(), threading.Event()

    def stand_still(_: Any) -> None:
        sent.set()
        answered.wait(30)

    openai_api.trouble = stand_still

    async def cancelled() -> None:
        plain = openai.AsyncOpenAI(api_key="x", base_url=f"{openai_api.url}/v1")
        client = throttled(plain, of_openai(limiter))
        call = asyncio.ensure_future(chat(client))
        assert await asyncio.to_thread(sent.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.close()
        await limiter.store.aclose()

    asyncio.run(cancelled())
    answered.set()
    assert (taken(limiter, "requests"), taken(limiter, "tokens")) == (1, 0)


AZURE: Any = {"api_key": "x", "api_version": "1", "azure_endpoint": "https://gateway.example.com"}


@pytest.mark.parametrize("kind", [openai.OpenAI, openai.AsyncOpenAI])
@pytest.mark.parametrize(
    ("host", "profile"),
    [
        ("api.openai.com", OPENAI),
        ("gateway.example.com", OPENAI),
        ("shop.openai.azure.com", AZURE_OPENAI),
        ("shop.services.ai.azure.com", AZURE_OPENAI),
        ("shop.openai.azure.us", AZURE_OPENAI),
        ("api.groq.com", GROQ),
        ("api.mistral.ai", MISTRAL),
        ("api.together.xyz", TOGETHER),
        ("api.together.ai", TOGETHER),
        ("api.deepseek.com", DEEPSEEK),
        ("notgroq.com", OPENAI),
        ("together.example.com", OPENAI),
        ("gateway.example.com/azure.com", OPENAI),
    ],
)
def test_the_host_of_a_client_of_openai_selects_the_profile(
    kind: Any, host: str, profile: Profile
) -> None:
    assert openai_profile(kind(api_key="x", base_url=f"https://{host}/openai/v1")) is profile


def test_a_client_of_the_class_for_azure_has_its_profile_at_any_host() -> None:
    class Company(openai.AzureOpenAI):
        """One of a user."""

    for kind in (openai.AzureOpenAI, openai.AsyncAzureOpenAI, Company):
        assert openai_profile(kind(**AZURE)) is AZURE_OPENAI
