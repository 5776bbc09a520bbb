"""The end of a guarded call: whatever happens, the slot is released and the estimate settled."""

from __future__ import annotations

import asyncio
import gc
import gzip
import inspect
import signal
import warnings
from math import inf, nan
from typing import Any

import aiohttp
import httpx
import pytest

from celery_throttle import Limiter, wrap
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.httpx import AsyncThrottledTransport, ThrottledTransport
from celery_throttle.clients.profiles.models import OPENAI
from tests.clients.api import Answer, Api
from tests.servers.server import Server

LIMITS = {
    "tokens": "1000/d burst 1000",
    "pool": "2 at once",
    "requests": "1000/d burst 10",
}


def used(limiter: Limiter) -> tuple[int, int]:
    """Tokens and slots in use."""
    return 1000 - limiter["tokens"].peek(0).remaining, 2 - limiter["pool"].peek(0).remaining


def limits(limiter: Limiter) -> Any:
    return {"tokens": limiter["tokens"], "requests": limiter["pool"]}


@pytest.mark.parametrize("answer", [Answer(), Answer(204, {}, b""), Answer(body=b"x" * 300_000)])
def test_a_response_of_aiohttp_that_nobody_reads_releases_its_slot(
    api: Api, limiter: Limiter, answer: Answer
) -> None:
    async def main() -> None:
        api.answers = [answer]
        middleware = ThrottledMiddleware(limiter["pool"])
        async with aiohttp.ClientSession(middlewares=[middleware]) as session:
            async with session.get(api.url) as response:
                assert response.status == answer.status
            for _ in range(100):
                if used(limiter)[1] == 0:
                    break
                await asyncio.sleep(0.02)
        await limiter.store.aclose()

    asyncio.run(main())
    assert used(limiter)[1] == 0


def test_a_call_that_is_cancelled_again_while_it_ends_is_settled_and_releases_its_slot(
    limiter: Limiter,
) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def send() -> None:
            begun.set()
            await asyncio.Event().wait()

        call = wrap(limits(limiter), send, cost={"tokens": 400}, usage=lambda _: {})
        task = asyncio.create_task(call())
        await begun.wait()
        while not task.done():  # as cancel scopes of anyio do
            task.cancel()
            await asyncio.sleep(0)
        await limiter.store.aclose()

    asyncio.run(main())
    assert used(limiter) == (0, 0)


def test_a_call_that_is_cancelled_while_its_limits_learn_of_its_success_costs_its_estimate(
    own_server: Server,
) -> None:
    limiter = Limiter(own_server.url, LIMITS, timeout=10)
    learns = {"x-ratelimit-remaining-tokens": "1000"}

    async def main() -> None:
        sent = asyncio.Event()

        async def send() -> str:
            own_server.signal(signal.SIGSTOP)
            sent.set()
            return "paid"

        call = wrap(
            {"tokens": limiter["tokens"]},
            send,
            cost={"tokens": 400},
            usage=lambda _: {"tokens": 300},
            answer=lambda _: ApiAnswer(200, learns),
        )
        task = asyncio.create_task(call())
        await sent.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0)
        own_server.signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await task
        await limiter.store.aclose()

    asyncio.run(main())
    assert used(limiter)[0] == 400
    limiter.store.close()


@pytest.mark.parametrize("usage", [-5, "many", None, nan, inf, [], {"tokens": "x"}])
def test_a_usage_that_is_no_cost_loses_neither_the_result_nor_the_slot(
    limiter: Limiter, caplog: pytest.LogCaptureFixture, usage: Any
) -> None:
    def pay() -> str:
        return "paid"

    call = wrap(limits(limiter), pay, cost={"tokens": 400}, usage=lambda _: usage)
    assert call() == "paid"
    assert "was not reported to its limits: cost" in caplog.text
    assert used(limiter) == (400, 0)


def test_a_limit_that_is_undefined_meanwhile_loses_neither_the_result_nor_the_slot(
    limiter: Limiter,
) -> None:
    limiter["own"].define("100/d burst 100")

    def send() -> str:
        limiter["own"].undefine()
        return "paid"

    own = {"tokens": limiter["own"], "requests": limiter["pool"]}
    call = wrap(own, send, cost={"tokens": 40}, usage=lambda _: {"tokens": 10})
    assert call() == "paid"
    assert used(limiter)[1] == 0


@pytest.mark.parametrize("status", [200, 400])
def test_a_response_of_httpx_is_as_without_limits(api: Api, limiter: Limiter, status: int) -> None:
    raw = gzip.compress(b"text")
    api.answers = [Answer(status, {"content-encoding": "gzip"}, raw)] * 4

    async def acall() -> tuple[httpx.Response, bytes]:
        transport = AsyncThrottledTransport(limits(limiter))
        async with httpx.AsyncClient(transport=transport) as client:
            response = await client.get(api.url)
            async with client.stream("GET", api.url) as stream:
                pieces = b"".join([piece async for piece in stream.aiter_raw()])
        await limiter.store.aclose()
        return response, pieces

    def call() -> tuple[httpx.Response, bytes]:
        with httpx.Client(transport=ThrottledTransport(limits(limiter))) as client:
            response = client.get(api.url)
            with client.stream("GET", api.url) as stream:
                return response, b"".join(stream.iter_raw())

    for response, pieces in (call(), asyncio.run(acall())):
        assert response.content == b"text"
        assert response.elapsed.total_seconds() > 0
        assert pieces == raw
    assert used(limiter)[1] == 0


@pytest.mark.parametrize("status", [200, 400])
def test_a_body_that_is_nested_too_deep_is_passed_on(
    api: Api, limiter: Limiter, status: int
) -> None:
    body = b"[" * 200_000
    api.answers = [Answer(status, {"content-type": "application/json"}, body)]
    transport = ThrottledTransport(limits(limiter), profile=OPENAI, cost={"tokens": 400})
    with httpx.Client(transport=transport) as client:
        assert client.get(api.url).content == body
    assert used(limiter)[1] == 0


def test_a_call_that_is_forgotten_with_its_loop_ends_without_an_error(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)

    async def send() -> None:
        await asyncio.Event().wait()

    call = wrap(limits(limiter), send, cost={"tokens": 400}, usage=lambda _: {})()
    loop = asyncio.new_event_loop()
    task = loop.create_task(call)
    loop.run_until_complete(asyncio.sleep(0.3))
    loop.run_until_complete(limiter.store.aclose())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # of asyncio
    del call, task
    gc.collect()
    assert [str(error.exc_value) for error in errors] == []


@pytest.mark.skipif(
    "max_line_length" not in inspect.signature(aiohttp.StreamReader.readline).parameters,
    reason="only newer versions of aiohttp have it",
)
async def test_the_body_of_aiohttp_is_read_with_the_options_of_aiohttp(
    api: Api, limiter: Limiter
) -> None:
    api.answers = [Answer(body=b"one\ntwo\n")]
    middleware = ThrottledMiddleware(limiter["pool"])
    async with (
        aiohttp.ClientSession(middlewares=[middleware]) as session,
        session.get(api.url) as response,
    ):
        assert await response.content.readline(max_line_length=10) == b"one\n"
        assert await response.content.readuntil(b"o") == b"two"
    await limiter.store.aclose()


def test_a_response_of_aiohttp_that_is_forgotten_with_its_loop_ends_without_a_warning(
    api: Api, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # aiohttp needs the loop
    api.answers = [Answer(body=b"x" * 3_000_000)]  # it is not read to its end
    responses: list[aiohttp.ClientResponse] = []

    async def main() -> None:
        middleware = ThrottledMiddleware(limiter["pool"])
        session = aiohttp.ClientSession(middlewares=[middleware])
        responses.append(await session.get(api.url))
        await limiter.store.aclose()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        responses.clear()
        gc.collect()
    assert [str(one.message) for one in caught if one.category is RuntimeWarning] == []


def test_units_that_the_usage_does_not_tell_stay_as_estimated(limiter: Limiter) -> None:
    both = {"tokens": limiter["tokens"], "requests": limiter["requests"]}
    cost = {"tokens": 400, "requests": 3}  # a batch
    wrap(both, lambda: 150, cost=cost, usage=lambda tokens: {"tokens": tokens})()
    assert limiter["tokens"].peek(0).remaining == 1000 - 150
    assert limiter["requests"].peek(0).remaining == 10 - 3
