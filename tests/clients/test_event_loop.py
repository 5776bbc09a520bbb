"""Clients in a running event loop: a call that returns an awaitable waits as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

from celery_throttle import BlockingWaitError, Limiter, throttled, wrap
from celery_throttle.clients.httpx import ThrottledTransport
from celery_throttle.clients.requests import ThrottledAdapter
from tests.clients.vendors import Anthropic, OpenAI, Reply, Vendor

CALLS = 10
LIMITS = {"api": "50/s burst 1", "requests": "1/h burst 50"}

MESSAGES: Any = [{"role": "user", "content": "10 in 10 out"}]
RESPONSE = {
    "id": "1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "output": [],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
}

#: Each returns a method of an asyncio SDK, bound to a server, and its arguments.
METHODS: dict[str, Callable[[Vendor], tuple[Any, dict[str, Any]]]] = {
    "openai chat": lambda api: (
        openai_client(api).chat.completions.create,
        {"model": "m", "messages": MESSAGES},
    ),
    "openai responses": lambda api: (
        openai_client(api).responses.create,
        {"model": "m", "input": "hi"},
    ),
    "anthropic messages": lambda api: (
        anthropic.AsyncAnthropic(api_key="x", base_url=api.url).messages.create,
        {"model": "m", "max_tokens": 10, "messages": MESSAGES},
    ),
}
if find_spec("openai.resources.responses") is None:  # before openai 1.66
    del METHODS["openai responses"]


def openai_client(api: Vendor) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="x", base_url=f"{api.url}/v1")


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[Vendor]:
    kind = Anthropic if "anthropic" in request.node.name else OpenAI
    quantities = ("requests", "tokens", "input-tokens", "output-tokens")
    api = kind(dict.fromkeys(quantities, 6_000_000))
    api.trouble = lambda request: Reply(200, RESPONSE) if "input" in request else None
    yield api
    api.close()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("hidden", [False, True], ids=["method", "lambda"])
def test_a_wrapped_method_waits_and_its_loop_does_not(
    api: Vendor, limiter: Limiter, method: Callable[[Vendor], Any], *, hidden: bool
) -> None:
    async def main() -> int:
        create, arguments = method(api)
        call: Any = partial(wrap(limiter["api"], create, max_wait=60), **arguments)
        if hidden:
            call = wrap(limiter["api"], lambda: create(**arguments), max_wait=60, is_async=True)
        began, ticks = time.monotonic(), 0
        calls = asyncio.gather(*(call() for _ in range(CALLS)))
        while not calls.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await calls
        assert time.monotonic() - began >= (CALLS - 1) / 50
        await create.__self__._client.close()
        await limiter.store.aclose()
        return ticks

    assert asyncio.run(main()) >= CALLS  # it had its turns between the calls
    assert api.statuses() == [200] * CALLS


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_function_that_hides_an_awaitable_must_say_so(
    api: Vendor, limiter: Limiter, method: Callable[[Vendor], Any]
) -> None:
    async def main() -> None:
        create, arguments = method(api)
        with pytest.raises(BlockingWaitError, match="is_async=True for wrap"):
            wrap(limiter["requests"], lambda: create(**arguments), max_wait=60)()
        assert await wrap(limiter["requests"], lambda: create(**arguments))()  # without a wait
        await create.__self__._client.close()

    asyncio.run(main())
    assert len(api.requests) == 1
    assert limiter["requests"].peek(0).remaining == 49


def send_by_sdk(api: Vendor, limiter: Limiter, **options: Any) -> None:
    plain = openai.OpenAI(api_key="x", base_url=f"{api.url}/v1")
    client = throttled(plain, limiter["requests"], **options)
    client.chat.completions.create(model="m", messages=MESSAGES)


def send_by_httpx(api: Vendor, limiter: Limiter, **options: Any) -> None:
    with httpx.Client(transport=ThrottledTransport(limiter["requests"], **options)) as client:
        client.post(api.url, json={"model": "m", "messages": MESSAGES}).raise_for_status()


def send_by_requests(api: Vendor, limiter: Limiter, **options: Any) -> None:
    with requests.Session() as session:
        session.mount("http://", ThrottledAdapter(limiter["requests"], **options))
        body = {"model": "m", "messages": MESSAGES}
        session.post(api.url, json=body, timeout=30).raise_for_status()


SYNC = [send_by_sdk, send_by_httpx, send_by_requests]


@pytest.mark.parametrize("send", SYNC)
def test_a_blocking_client_that_may_wait_sends_nothing(
    api: Vendor, limiter: Limiter, send: Callable[..., None]
) -> None:
    async def main() -> None:
        with pytest.raises(BlockingWaitError, match="the asyncio client of an SDK"):
            send(api, limiter, max_wait=5)
        send(api, limiter)

    asyncio.run(main())
    assert api.statuses() == [200]
    assert limiter["requests"].peek(0).remaining == 49


@pytest.mark.parametrize("send", SYNC)
def test_a_blocking_client_does_not_wait_to_send_again(
    api: Vendor, limiter: Limiter, send: Callable[..., None]
) -> None:
    """Nobody knows of a refusal before: a request that is accepted raises nothing."""

    async def main() -> None:
        send(api, limiter, retry_refused=2)
        api.replies = [api.refusal("requests", 0.2)]
        with pytest.raises(BlockingWaitError, match="the asyncio client of an SDK"):
            send(api, limiter, retry_refused=2)

    asyncio.run(main())
    assert api.statuses() == [200, 429]
    assert limiter["requests"].status().totals.api_refusals == 1
