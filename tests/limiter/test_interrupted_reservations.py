"""Calls that are interrupted while the server takes their estimate: it is given back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.clients.wrapped import wrap
from tests.servers.server import Server
from tests.shards import stores_of

LIMITS = {"tokens": "1000/d burst 100", "requests": "1000/d burst 10"}


def send(text: str) -> str:
    raise AssertionError(f"{text} was sent")


async def asend(text: str) -> str:
    return send(text)


def guarded(limiter: Limiter, function: Callable[..., Any]) -> Any:
    limits = {"requests": limiter["requests"], "tokens": limiter["tokens"]}
    return wrap(limits, function, cost={"tokens": 50}, usage=lambda _: {"tokens": 1})("a text")


CALLS: dict[str, Callable[[Limiter], Any]] = {
    "reserve": lambda limiter: limiter["tokens"].reserve(50),
    "several": lambda limiter: limiter.reserve([*LIMITS], {"tokens": 50}),
    "guarded": lambda limiter: guarded(limiter, send),
}

ASYNC_CALLS: dict[str, Callable[[Limiter], Awaitable[Any]]] = {
    "reserve": lambda limiter: limiter["tokens"].areserve(50),
    "several": lambda limiter: limiter.areserve([*LIMITS], {"tokens": 50}),
    "guarded": lambda limiter: guarded(limiter, asend),
}


@pytest.fixture(params=["known limits", "unknown limits", "shards"])
def limiter(request: pytest.FixtureRequest, own_server: Server) -> Iterator[Limiter]:
    shards = {"own": {"limits": [*LIMITS, "other"]}} if request.param == "shards" else None
    limiter = Limiter(own_server.url, LIMITS, shards=shards, timeout=10)
    if request.param != "unknown limits":
        limiter.register()
    limiter["other"].define("1/s")
    yield limiter
    for store in stores_of(limiter):
        store.close()


def left(limiter: Limiter) -> list[int]:
    return [limiter[name].peek(0).remaining for name in LIMITS]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_estimate_is_given_back_if_a_signal_ends_its_call(
    limiter: Limiter, call: Callable[[Limiter], Any], own_server: Server
) -> None:
    """The server takes it after that."""

    def interrupt(_number: int, _frame: object) -> None:
        own_server.signal(signal.SIGCONT)
        raise KeyboardInterrupt

    limiter["other"].peek()  # opens a connection
    previous = signal.signal(signal.SIGUSR2, interrupt)
    own_server.signal(signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call(limiter)
    finally:
        own_server.signal(signal.SIGCONT)
        signal.signal(signal.SIGUSR2, previous)
    assert left(limiter) == [100, 10]


@pytest.mark.thorough
@pytest.mark.parametrize("cancellations", [1, 3])
@pytest.mark.parametrize("call", ASYNC_CALLS.values(), ids=ASYNC_CALLS)
def test_an_estimate_is_given_back_if_its_call_is_cancelled(
    limiter: Limiter,
    call: Callable[[Limiter], Awaitable[Any]],
    own_server: Server,
    cancellations: int,
) -> None:
    async def run() -> None:
        await limiter["other"].apeek()  # opens a connection
        own_server.signal(signal.SIGSTOP)
        try:
            task = asyncio.ensure_future(call(limiter))
            for _ in range(10):  # until the call is sent
                await asyncio.sleep(0)
            for _ in range(cancellations):
                task.cancel()
                await asyncio.sleep(0)
        finally:
            own_server.signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await task
        for store in stores_of(limiter):
            await store.aclose()

    asyncio.run(run())
    assert left(limiter) == [100, 10]


def test_an_estimate_is_given_back_though_its_script_had_to_be_loaded_first(
    own_server: Server,
) -> None:
    async def run() -> None:
        limiter = Limiter(own_server.url, LIMITS)
        await limiter["tokens"].apeek()
        with redis.Redis.from_url(own_server.url) as client:
            client.script_flush()
        own_server.signal(signal.SIGSTOP)
        try:
            task = asyncio.ensure_future(limiter["tokens"].areserve(50))
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
        finally:
            own_server.signal(signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter["tokens"].apeek()).remaining == 100
        await limiter.store.aclose()

    asyncio.run(run())
