"""``retry_refused``: a refused request is sent again once its limits go on."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, SupportsIndex

import aiohttp
import httpx
import pytest
import requests

from celery_throttle import Limiter, LimitValueError
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from celery_throttle.clients.httpx import AsyncThrottledTransport, ThrottledTransport
from celery_throttle.clients.requests import ThrottledAdapter
from tests.clients.api import Answer, Api, Make, every, http
from tests.servers.server import Server

LIMITS = {
    "api": "1000/h burst 100",
    "two": "1/h burst 2",
    "pool": "1 at once",
    "open": "1/h outage open",
}


def refusals(count: int, seconds: float = 0.3) -> list[Answer]:
    headers = {"Retry-After-Ms": str(seconds * 1000)}
    return [Answer(429, headers, b"no %d" % number) for number in range(count)]


@every
def test_it_is_sent_again_when_the_limit_goes_on(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["api"], retry_refused=3)
    api.answers = refusals(2)
    assert client.get()[0] == 200
    (first, _), (second, _), (third, status) = api.log
    assert status == 200
    assert min(second - first, third - second) >= 0.29
    assert limiter["api"].peek(0).remaining == 97  # each attempt has taken its units


@every
def test_not_more_often_than_it_may(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["api"], retry_refused=2)
    api.answers = refusals(9, 0.05)
    assert client.get() == (429, b"no 2")
    assert len(api.log) == 3
    without = make(limiter["api"], max_wait=1)
    assert without.get() == (429, b"no 3")
    assert len(api.log) == 4


@every
def test_without_room_after_the_stop_the_answer_is_the_callers(
    make: Make, limiter: Limiter, api: Api
) -> None:
    client = make(limiter["two"], retry_refused=5)
    api.answers = refusals(9, 0.1)
    began = time.monotonic()
    assert client.get() == (429, b"no 1")  # two units, and the next one in an hour
    assert time.monotonic() - began < 10
    limiter["api"].pause(None)
    assert len(api.log) == 2


@every
def test_a_limit_that_is_paused_until_resumed_is_not_waited_for(
    make: Make, limiter: Limiter, api: Api
) -> None:
    client = make(limiter["api"], retry_refused=5)
    api.answers = refusals(9, 0.1)
    original = api.answers.pop

    def pop(place: int) -> Answer:
        limiter["api"].pause(None)  # while the request is on its way
        return original(place)

    api.answers = type("Answers", (list,), {"pop": lambda _, place: pop(place)})(api.answers)
    assert client.get() == (429, b"no 0")
    assert len(api.log) == 1
    limiter["api"].resume()


@every
def test_slots_are_given_back_and_taken_anew(make: Make, limiter: Limiter, api: Api) -> None:
    client = make(limiter["pool"], retry_refused=2, max_wait=5)
    api.answers = refusals(2, 0.05)
    assert client.get()[0] == 200
    assert limiter["pool"].peek().allowed
    api.answers = refusals(3, 0.05)
    assert client.get()[0] == 429
    assert limiter["pool"].peek().allowed or limiter["pool"].peek().paused


@http
@pytest.mark.parametrize("status", [503, 403])
def test_what_else_is_a_refusal(make: Make, limiter: Limiter, api: Api, status: int) -> None:
    client = make(limiter["api"], retry_refused=1)
    api.answers = [Answer(status, {"Retry-After": "0"}), Answer(), Answer(status), Answer()]
    assert client.get()[0] == 200
    assert client.get()[0] == status  # says nothing about limits
    assert len(api.log) == 3


@pytest.mark.thorough
@http
def test_while_the_limits_are_lost_it_waits_by_itself(
    make: Make, api: Api, own_server: Server
) -> None:
    limiter = Limiter(own_server.url, LIMITS)
    client = make(limiter["open"], retry_refused=1)
    own_server.stop()
    api.answers = refusals(1)
    assert client.get()[0] == 200
    (first, _), (second, _) = api.log
    assert second - first >= 0.29


@pytest.mark.thorough
@every
def test_without_the_server_of_the_limits_the_answer_is_the_callers(
    make: Make, api: Api, own_server: Server
) -> None:
    limiter = Limiter(own_server.url, LIMITS)
    client = make(limiter["api"], retry_refused=1)

    class LastAnswer(list[Answer]):
        def pop(self, place: SupportsIndex = -1) -> Answer:
            own_server.stop()  # while the request is on its way
            return super().pop(place)

    api.answers = LastAnswer(refusals(1, 0.05))
    assert client.get() == (429, b"no 0")
    assert len(api.log) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2"])
@every
def test_what_it_may_be(make: Make, limiter: Limiter, wrong: Any) -> None:
    with pytest.raises(
        LimitValueError, match=r"retry_refused .* is out of .*: whole numbers, 0 or more"
    ):
        make(limiter["api"], retry_refused=wrong)


# Bodies.


def stream() -> Iterator[bytes]:
    yield b"a"
    yield b"b"


async def astream() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


def by_httpx(url: str, limiter: Limiter, body: Any) -> int:
    with httpx.Client(transport=ThrottledTransport(limiter["api"], retry_refused=1)) as client:
        return client.post(url, **body).status_code


def by_async_httpx(url: str, limiter: Limiter, body: Any) -> int:
    async def post() -> int:
        transport = AsyncThrottledTransport(limiter["api"], retry_refused=1)
        async with httpx.AsyncClient(transport=transport) as client:
            status = (await client.post(url, **body)).status_code
        await limiter.store.aclose()
        return status

    return asyncio.run(post())


def by_requests(url: str, limiter: Limiter, body: Any) -> int:
    with requests.Session() as session:
        session.mount("http://", ThrottledAdapter(limiter["api"], retry_refused=1))
        return session.post(url, timeout=10, **body).status_code


def by_aiohttp(url: str, limiter: Limiter, body: Any) -> int:
    async def post() -> int:
        middleware = ThrottledMiddleware(limiter["api"], retry_refused=1)
        async with (
            aiohttp.ClientSession(middlewares=[middleware]) as session,
            session.post(url, **body) as answer,
        ):
            status = answer.status
        await limiter.store.aclose()
        return status

    return asyncio.run(post())


Post = Callable[[str, Limiter, Any], int]


@pytest.mark.parametrize(
    ("post", "body"),
    [
        (by_httpx, {"content": b"ab"}),
        (by_httpx, {"json": {"a": 1}}),
        (by_httpx, {"data": {"a": "1"}}),
        (by_async_httpx, {"content": b"ab"}),
        (by_async_httpx, {}),
        (by_requests, {"data": b"ab"}),
        (by_requests, {"json": {"a": 1}}),
        (by_requests, {}),
        (by_aiohttp, {"data": b"ab"}),
        (by_aiohttp, {"data": "ab"}),
        (by_aiohttp, {"json": {"a": 1}}),
        (by_aiohttp, {"data": {"a": "1"}}),
    ],
)
def test_a_body_in_memory_is_sent_again(
    limiter: Limiter, api: Api, post: Post, body: dict[str, Any]
) -> None:
    api.answers = refusals(1, 0.05)
    assert post(api.url, limiter, body) == 200
    first, second = api.bodies
    assert first == second
    assert bool(first) == bool(body)


@pytest.mark.parametrize(
    ("post", "body"),
    [
        (by_httpx, lambda: {"content": stream()}),
        (by_httpx, lambda: {"files": {"file": io.BytesIO(b"ab")}}),
        (by_async_httpx, lambda: {"content": astream()}),
        (by_requests, lambda: {"data": stream()}),
        (by_requests, lambda: {"data": io.BytesIO(b"ab")}),
        (by_aiohttp, lambda: {"data": astream()}),
        (by_aiohttp, lambda: {"data": io.BytesIO(b"ab")}),
    ],
)
def test_of_a_stream_the_answer_is_the_callers(
    limiter: Limiter, api: Api, post: Post, body: Callable[[], dict[str, Any]]
) -> None:
    api.answers = refusals(1, 0.05)
    assert post(api.url, limiter, body()) == 429
    assert len(api.bodies) == 1
    assert b"ab" in api.bodies[0]
