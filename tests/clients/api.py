"""An API whose responses a test sets, and guarded clients of every kind that call it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

from celery_throttle import Limiter, throttled, wrap
from celery_throttle.clients import httpx2 as by_httpx2
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from celery_throttle.clients.calls.guard import GuardedLimits
from celery_throttle.clients.httpx import AsyncThrottledTransport, ThrottledTransport
from celery_throttle.clients.requests import ThrottledAdapter
from celery_throttle.limiter.handle import LimitHandle


class Answer(NamedTuple):
    """A response of the API."""

    status: int = 200
    headers: Mapping[str, str] = {}
    body: bytes = b"{}"


class Api:
    """Records the requests; sends the next of ``answers``, or 200 if there is none."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        #: The bodies of POST requests.
        self.bodies: list[bytes] = []
        #: The time and status of each response.
        self.log: list[tuple[float, int]] = []
        self.answers: list[Answer] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # as http.server has it
                self._answer()

            def do_POST(self) -> None:  # likewise
                api.bodies.append(self._body())
                self._answer()

            def _body(self) -> bytes:
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _answer(self) -> None:
                api.paths.append(self.path)
                answer = api.answers.pop(0) if api.answers else Answer()
                api.log.append((time.monotonic(), answer.status))
                self.send_response_only(answer.status)
                for name, text in answer.headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Body(NamedTuple):
    """The body of a response that is streamed: all at once, or piece by piece."""

    read: Callable[[], bytes]
    pieces: Iterator[bytes]


class Client:
    """A guarded client; ``get`` returns status and body."""

    #: That of a limit which is a function of the request.
    limiter: Limiter | None = None

    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        self._url = url
        self._limit = limit
        self._options = options

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        raise NotImplementedError

    def streamed(self) -> AbstractContextManager[Body]:
        """Send a request whose body is streamed; at the end, close it, read or not."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""


class Httpx(Client):
    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        transport = ThrottledTransport(limit, **options)
        self._client: Any = httpx.Client(base_url=url, transport=transport)

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        answer = self._client.get(path, headers=headers)
        return int(answer.status_code), bytes(answer.content)

    @contextmanager
    def streamed(self) -> Iterator[Body]:
        with self._client.stream("GET", "/") as answer:
            yield Body(answer.read, answer.iter_bytes())

    def close(self) -> None:
        self._client.close()


class Httpx2(Httpx):
    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        transport = by_httpx2.ThrottledTransport(limit, **options)
        self._client: Any = httpx2.Client(base_url=url, transport=transport)


class Requests(Client):
    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.mount("http://", ThrottledAdapter(limit, **options))

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        answer = self._session.get(self._url + path, headers=headers, timeout=10)
        return answer.status_code, answer.content

    @contextmanager
    def streamed(self) -> Iterator[Body]:
        with self._session.get(self._url, stream=True, timeout=10) as answer:
            yield Body(lambda: answer.content, answer.iter_content(None))

    def close(self) -> None:
        self._session.close()


class Urllib3(Client):
    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        self._url = url
        options.setdefault("retry_refused", 0)
        self._manager = throttled(urllib3.PoolManager(), limit, **options)

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        answer = self._manager.request("GET", self._url + path, headers=headers, timeout=10)
        return answer.status, answer.data

    @contextmanager
    def streamed(self) -> Iterator[Body]:
        answer = self._manager.request("GET", self._url, preload_content=False)
        yield Body(lambda: answer.data, answer.stream())
        answer.close()

    def close(self) -> None:
        self._manager.clear()


class Looped(Client):
    """A client in an event loop of its own."""

    def __init__(self, url: str, limit: GuardedLimits, **options: Any) -> None:
        super().__init__(url, limit, **options)
        self._loop = asyncio.new_event_loop()
        self._client = self.do(self._made())

    def do(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def each(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        while (item := self.do(anext(aiter(items), None))) is not None:
            yield item

    async def _made(self) -> Any:
        raise NotImplementedError

    async def _closed(self) -> None:
        raise NotImplementedError

    async def asked(self) -> None:
        """Send one request."""
        raise NotImplementedError

    def close(self) -> None:
        self.do(self._closed())
        self.do(others_done())
        self.do(stores_closed(self._limit))
        if self.limiter is not None:
            self.do(self.limiter.store.aclose())
        self._loop.close()


async def others_done() -> None:
    """Wait for tasks that the end of a call started in the background."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


class AsyncHttpx(Looped):
    async def _made(self) -> httpx.AsyncClient:
        transport = AsyncThrottledTransport(self._limit, **self._options)
        return httpx.AsyncClient(base_url=self._url, transport=transport)

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        answer = self.do(self._client.get(path, headers=headers))
        return answer.status_code, answer.content

    @contextmanager
    def streamed(self) -> Iterator[Body]:
        stream = self._client.stream("GET", "/")
        answer = self.do(stream.__aenter__())
        yield Body(lambda: self.do(answer.aread()), self.each(answer.aiter_bytes()))
        self.do(stream.__aexit__(None, None, None))

    async def asked(self) -> None:
        await self._client.get("/")

    async def _closed(self) -> None:
        await self._client.aclose()


class Aiohttp(Looped):
    async def _made(self) -> aiohttp.ClientSession:
        middleware = ThrottledMiddleware(self._limit, **self._options)
        return aiohttp.ClientSession(self._url, middlewares=[middleware])

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        async def get() -> tuple[int, bytes]:
            async with self._client.get(path, headers=headers) as answer:
                return answer.status, await answer.read()

        answer: tuple[int, bytes] = self.do(get())
        return answer

    @contextmanager
    def streamed(self) -> Iterator[Body]:
        answer = self.do(self._client.get("/").__aenter__())
        yield Body(lambda: self.do(answer.read()), self.each(answer.content.iter_any()))

        async def close() -> None:
            answer.close()
            await others_done()

        self.do(close())

    async def asked(self) -> None:
        async with self._client.get("/") as answer:
            await answer.read()

    async def _closed(self) -> None:
        await self._client.close()


class Function(Client):
    """A wrapped function as of an SDK; it raises if the API refuses."""

    class RefusedError(Exception):
        def __init__(self, response: httpx.Response) -> None:
            self.response = response

    def __init__(self, url: str, limit: Any, **options: Any) -> None:
        self._client = httpx.Client(base_url=url)

        def get(path: str, headers: Mapping[str, str]) -> httpx.Response:
            answer = self._client.get(path, headers=headers)
            if answer.status_code == 429:
                raise self.RefusedError(answer)
            return answer

        self._get = wrap(limit, get, **options)

    def get(self, path: str = "/", **headers: str) -> tuple[int, bytes]:
        try:
            answer = self._get(path, headers)
        except self.RefusedError as error:
            return error.response.status_code, error.response.content
        return answer.status_code, answer.content

    def close(self) -> None:
        self._client.close()


HTTP: tuple[type[Client], ...] = (Httpx, Httpx2, AsyncHttpx, Requests, Urllib3, Aiohttp)
EVERY: tuple[type[Client], ...] = (*HTTP, Function)

Make = Callable[..., Client]

#: Run a test with clients of each kind; or of each that sends by HTTP.
every = pytest.mark.parametrize("make", EVERY, indirect=True)
http = pytest.mark.parametrize("make", HTTP, indirect=True)


async def stores_closed(limits: Any) -> None:
    """Close the connections that a loop has opened for some limits."""
    groups = limits.values() if isinstance(limits, Mapping) else [limits]
    for group in groups:
        for limit in group if isinstance(group, list) else [group]:
            if isinstance(limit, LimitHandle):
                await limit.limiter.store.aclose()
