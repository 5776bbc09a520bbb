"""Iterators that wrapped functions return: as they were, and the call ends with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import closing, suppress
from io import TextIOBase
from typing import Any, ClassVar

import aiohttp
import httpx
import pytest

from celery_throttle import Limiter, wrap
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.profiles import OPENAI
from tests.clients.api import Answer, Api

LIMITS = {"pool": "2 at once", "tokens": "1000/d burst 1000"}


class EndError(Exception):
    """Ends a generator."""


def echo() -> Generator[str, str, str]:
    """Yield what is sent, and "thrown" after a ValueError, until "last" is sent."""
    item = "first"
    while item != "last":
        sent = "thrown"
        with suppress(ValueError):
            sent = yield item
        item = sent
    return "result"


async def aecho() -> AsyncGenerator[str, str]:
    item = "first"
    while item != "last":
        sent = "thrown"
        with suppress(ValueError):
            sent = yield item
        item = sent


def slots(limiter: Limiter) -> int:
    return 2 - limiter["pool"].peek(0).remaining


def tokens(limiter: Limiter) -> int:
    return 1000 - limiter["tokens"].peek(0).remaining


@pytest.mark.parametrize("error", [None, EndError()], ids=["send", "throw"])
def test_a_generator_that_ends_by_send_or_throw_ends_its_call(
    limiter: Limiter, error: EndError | None
) -> None:
    both = {"requests": limiter["pool"], "tokens": limiter["tokens"]}
    items: Any = wrap(both, echo, cost={"tokens": 400}, usage=lambda item: {"tokens": len(item)})()
    assert next(items) == "first"
    assert items.send("longer text") == "longer text"
    assert items.throw(ValueError()) == "thrown"
    assert slots(limiter) == 1
    if error is None:
        with pytest.raises(StopIteration, match="result"):
            items.send("last")
    else:
        with pytest.raises(EndError):
            items.throw(error)
    assert slots(limiter) == 0
    assert tokens(limiter) == len("thrown")


@pytest.mark.parametrize("error", [None, EndError()], ids=["asend", "athrow"])
def test_an_async_generator_that_ends_by_asend_or_athrow_ends_its_call(
    limiter: Limiter, error: EndError | None
) -> None:
    async def main() -> None:
        items: Any = wrap(limiter["pool"], aecho)()
        assert await anext(items) == "first"
        assert await items.asend("second") == "second"
        assert await items.athrow(ValueError()) == "thrown"
        assert (await limiter["pool"].apeek(0)).remaining == 1
        if error is None:
            with pytest.raises(StopAsyncIteration):
                await items.asend("last")
        else:
            with pytest.raises(EndError):
                await items.athrow(error)
        assert (await limiter["pool"].apeek(0)).remaining == 2
        await limiter.store.aclose()

    asyncio.run(main())


def test_a_generator_that_delegates_to_an_iterator_can_be_closed(limiter: Limiter) -> None:
    def delegate() -> Generator[int, None, None]:
        yield from wrap(limiter["pool"], lambda: iter([1, 2]))()

    with closing(delegate()) as items:
        assert next(items) == 1
        assert slots(limiter) == 1
    assert slots(limiter) == 0
    items = delegate()
    assert next(items) == 1
    with pytest.raises(EndError):
        items.throw(EndError())


class RefusedError(Exception):
    status_code = 429
    headers: ClassVar = {"retry-after": "7"}


def refused() -> Iterator[str]:
    """A generator sends its request when its first item is wanted."""
    yield from ()
    raise RefusedError


async def arefused() -> AsyncIterator[str]:
    for item in refused():
        yield item


@pytest.mark.parametrize("items", [refused, arefused])
@pytest.mark.parametrize("settles", [True, False])
def test_limits_learn_of_a_refusal_that_an_iterator_raises(
    limiter: Limiter, items: Any, *, settles: bool
) -> None:
    call: Any = wrap(limiter["tokens"], items)
    if settles:
        both = {"requests": limiter["pool"], "tokens": limiter["tokens"]}
        call = wrap(both, items, cost={"tokens": 400}, usage=lambda _: {})

    async def read() -> None:
        try:
            await anext(call())
        finally:
            await limiter.store.aclose()

    with pytest.raises(RefusedError):
        asyncio.run(read()) if items is arefused else next(call())
    assert 6 < (limiter["tokens"].peek().retry_after or 0) <= 7
    limiter["tokens"].resume()
    limiter["pool"].resume()
    assert (slots(limiter), tokens(limiter)) == (0, 0 if settles else 1)


def test_without_slots_and_estimates_an_iterator_stays_as_it_is(limiter: Limiter) -> None:
    with wrap(limiter["tokens"], open)(__file__, encoding="utf-8") as file:
        assert isinstance(file, TextIOBase)


def test_an_error_whose_body_was_not_read_reaches_the_caller(limiter: Limiter) -> None:
    def send() -> None:
        request = httpx.Request("GET", "http://host")
        headers, content = {"retry-after": "7"}, iter([b"{}"])
        httpx.Response(429, request=request, headers=headers, content=content).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError, match="429"):
        wrap(limiter["tokens"], send, profile=OPENAI)()
    assert 6 < (limiter["tokens"].peek().retry_after or 0) <= 7


@pytest.mark.parametrize("options", [{}, {"is_async": True}])
def test_what_a_method_of_aiohttp_returns_is_awaited_or_entered(
    limiter: Limiter, api: Api, options: dict[str, Any]
) -> None:
    """As without limits; the slot is held until the ``async with`` ends."""
    api.answers += [Answer(body=b"awaited"), Answer(body=b"entered"), Answer(404)]

    async def run() -> list[tuple[bytes, int]]:
        async with aiohttp.ClientSession(api.url) as session:
            get = wrap(limiter["pool"], session.get, **options)
            response = await asyncio.create_task(get("/"))
            found = [(await response.read(), slots(limiter))]
            async with get("/") as response:
                found.append((await response.read(), slots(limiter)))
            assert response.closed
            with pytest.raises(aiohttp.ClientResponseError):
                async with get("/", raise_for_status=True):
                    raise AssertionError
            found.append((b"refused", slots(limiter)))
        await limiter.store.aclose()
        return found

    assert asyncio.run(run()) == [(b"awaited", 0), (b"entered", 1), (b"refused", 0)]


def test_a_refused_response_that_was_entered_is_left_before_the_next_attempt(
    limiter: Limiter, api: Api
) -> None:
    api.answers += [Answer(429, {"Retry-After": "0.1"})]
    left: list[int] = []

    class Request:
        def __init__(self, session: aiohttp.ClientSession) -> None:
            self._context: Any = session.get("/")

        def __await__(self) -> Any:
            return self._context.__await__()

        async def __aenter__(self) -> Any:
            return await self._context.__aenter__()

        async def __aexit__(self, *error: object) -> None:
            left.append(len(api.paths))
            await self._context.__aexit__(*error)

    def read(response: Any) -> ApiAnswer:
        return ApiAnswer(response.status, response.headers)

    async def run() -> int:
        async with aiohttp.ClientSession(api.url) as session:
            get = wrap(limiter["tokens"], Request, answer=read, retry_refused=1, is_async=True)
            async with get(session) as response:
                status: int = response.status
        await limiter.store.aclose()
        return status

    assert asyncio.run(run()) == 200
    assert left == [1, 2]


def test_an_iterator_is_of_its_own_kind_only(limiter: Limiter) -> None:
    """Frameworks look at that, to know how to stream a response."""
    kinds = (Iterator, AsyncIterator)
    items, aitems = wrap(limiter["pool"], echo)(), wrap(limiter["pool"], aecho)()
    assert [isinstance(items, kind) for kind in kinds] == [True, False]
    assert [isinstance(aitems, kind) for kind in kinds] == [False, True]
