"""Sends requests to an API as fast as it can, with one HTTP client, in one of three ways.

``python -m benchmarks.apps.driver JOB``, with the job as JSON, see :class:`Job`. It prints
``ready``, sends from the next line of its standard input to the one after that, and prints as JSON
how often each status occurred.

Ways: ``plain`` ignores 429s. ``backoff`` is what people use today: after a 429 it sends again after
``Retry-After``, or else after a random time of up to 0.1 s, 0.2 s, 0.4 s and so on to 5 s
(exponential with full jitter). ``ours`` is the wrapper of celery_throttle for this client.
``function`` is a function that sends by requests, wrapped as any callable.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import aiohttp
import httpx
import requests

from celery_throttle import Limiter, wrap

WAYS = PLAIN, BACKOFF, OURS = ("plain", "backoff", "ours")

#: Limits of the wrappers. The API enforces exact windows of 100 per second, and requests arrive a
#: few milliseconds earlier or later than they were admitted: hence 98. The last two never bind.
LIMITS = {
    "api": "98/s",
    "pool": "10 at once",
    "free": "1000/s burst 1000000",
    "room": "1000 at once",
}

#: Seconds that a call waits for its limit at most.
MAX_WAIT = 30.0

#: Seconds of backoff: the most after the first 429, and the most at all.
BASE, MAX_BACKOFF = 0.1, 5.0
TOO_MANY = 429

#: A status, and Retry-After.
Answer = tuple[int, str | None]
Call = Callable[[], Answer]
AsyncCall = Callable[[], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Job:
    """What to do. ``hands`` is the number of threads or coroutines; ``limit`` is for our way."""

    client: str
    way: str
    url: str
    limit: str
    store: str
    prefix: str
    hands: int


def delay(refusals: int, retry_after: str | None = None) -> float:
    """Return seconds to back off."""
    if retry_after is not None:
        return float(retry_after)
    return random.uniform(0, min(MAX_BACKOFF, BASE * 2 ** (refusals - 1)))


def persistent(call: Call) -> Call:
    """Return a call that backs off until it succeeds."""

    def insist() -> Answer:
        refusals = 0
        while (answer := call())[0] == TOO_MANY:
            refusals += 1
            time.sleep(delay(refusals, answer[1]))
        return answer

    return insist


def apersistent(call: AsyncCall) -> AsyncCall:
    """:func:`persistent` for asyncio."""

    async def insist() -> Answer:
        refusals = 0
        while (answer := await call())[0] == TOO_MANY:
            refusals += 1
            await asyncio.sleep(delay(refusals, answer[1]))
        return answer

    return insist


def _wrappers(client: str) -> Any:
    """Import the wrapper, which the other ways do not need."""
    return import_module(f"celery_throttle.clients.{client}")


@contextmanager
def _httpx(url: str, way: str, limit: Any) -> Iterator[Call]:
    transport = None
    if way == OURS:
        transport = _wrappers("httpx").ThrottledTransport(limit, max_wait=MAX_WAIT)
    with httpx.Client(transport=transport, trust_env=False) as client:

        def call() -> Answer:
            answer = client.get(url)
            return answer.status_code, answer.headers.get("Retry-After")

        yield persistent(call) if way == BACKOFF else call


@contextmanager
def _requests(url: str, way: str, limit: Any) -> Iterator[Call]:
    with requests.Session() as session:
        session.trust_env = False
        if way == OURS:
            adapter = _wrappers("requests").ThrottledAdapter(limit, max_wait=MAX_WAIT)
            session.mount("http://", adapter)

        def call() -> Answer:
            answer = session.get(url)
            return answer.status_code, answer.headers.get("Retry-After")

        yield persistent(call) if way == BACKOFF else call


@contextmanager
def _function(url: str, way: str, limit: Any) -> Iterator[Call]:
    with _requests(url, PLAIN if way == OURS else way, limit) as call:
        yield wrap(limit, call, max_wait=MAX_WAIT) if way == OURS else call


@asynccontextmanager
async def _async_httpx(url: str, way: str, limit: Any) -> AsyncIterator[AsyncCall]:
    transport = None
    if way == OURS:
        transport = _wrappers("httpx").AsyncThrottledTransport(limit, max_wait=MAX_WAIT)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:

        async def call() -> Answer:
            answer = await client.get(url)
            return answer.status_code, answer.headers.get("Retry-After")

        yield apersistent(call) if way == BACKOFF else call


@asynccontextmanager
async def _aiohttp(url: str, way: str, limit: Any) -> AsyncIterator[AsyncCall]:
    middlewares = []
    if way == OURS:
        middlewares.append(_wrappers("aiohttp").ThrottledMiddleware(limit, max_wait=MAX_WAIT))
    async with aiohttp.ClientSession(middlewares=middlewares) as session:

        async def call() -> Answer:
            async with session.get(url) as answer:
                await answer.read()
                return answer.status, answer.headers.get("Retry-After")

        yield apersistent(call) if way == BACKOFF else call


#: By name, a context that gives the call for a URL, a way, and our limit.
CLIENTS: dict[str, Callable[[str, str, Any], AbstractContextManager[Call]]] = {
    "httpx": _httpx,
    "requests": _requests,
    "function": _function,
}
ASYNC_CLIENTS: dict[str, Callable[[str, str, Any], AbstractAsyncContextManager[AsyncCall]]] = {
    "async httpx": _async_httpx,
    "aiohttp": _aiohttp,
}


def _drive(job: Job, limit: Any) -> Counter[int]:
    stop = threading.Event()

    def hand() -> Counter[int]:
        seen: Counter[int] = Counter()
        while not stop.is_set():
            seen[call()[0]] += 1
        return seen

    with (
        CLIENTS[job.client](job.url, job.way, limit) as call,
        ThreadPoolExecutor(job.hands) as pool,
    ):
        print("ready", flush=True)
        sys.stdin.readline()
        hands = [pool.submit(hand) for _ in range(job.hands)]
        sys.stdin.readline()
        stop.set()
        return sum((one.result() for one in hands), Counter())


async def _adrive(job: Job, limit: Any) -> Counter[int]:
    stop = asyncio.Event()

    async def hand() -> Counter[int]:
        seen: Counter[int] = Counter()
        while not stop.is_set():
            seen[(await call())[0]] += 1
        return seen

    async with ASYNC_CLIENTS[job.client](job.url, job.way, limit) as call:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        hands = [asyncio.create_task(hand()) for _ in range(job.hands)]
        await asyncio.to_thread(sys.stdin.readline)
        stop.set()
        return sum(await asyncio.gather(*hands), Counter())


def main() -> None:
    """Do the job."""
    job = Job(**json.loads(sys.argv[1]))
    limit = Limiter(job.store, LIMITS, prefix=job.prefix)[job.limit]
    seen = _drive(job, limit) if job.client in CLIENTS else asyncio.run(_adrive(job, limit))
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
