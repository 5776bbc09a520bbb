"""aiohttp: a middleware that acquires limits before each request and learns from responses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import (
    BytesPayload,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    StreamReader,
)
from aiohttp.base_protocol import BaseProtocol

from celery_throttle.clients.answer import ApiAnswer, parse_json
from celery_throttle.clients.calls.call import GuardedCall, call_steps, release_later
from celery_throttle.clients.calls.guard import CallCost, Guard, GuardedLimits, Usage
from celery_throttle.clients.calls.http import HttpExchange
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.store.steps import arun_steps


class ThrottledMiddleware:
    """A client middleware that acquires limits for requests and learns from responses.

    Each request raises :exc:`~celery_throttle.Throttled` or
    :exc:`~celery_throttle.StoreUnavailableError` under the conditions of
    :meth:`~celery_throttle.clients.httpx.ThrottledTransport.handle_request`.

    The arguments ``limits``, ``profile``, ``cost``, ``usage``, ``max_wait`` and ``retry_refused``,
    and their defaults, are those of ``ThrottledTransport``. Functions take the
    ``aiohttp.ClientRequest``. A body that is not text, bytes, JSON or a form without files counts
    as a stream.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            stripe = aiohttp.ClientSession(middlewares=[ThrottledMiddleware(throttle["stripe"])])
    """

    def __init__(
        self,
        limits: GuardedLimits,
        *,
        profile: Profile = GENERIC,
        cost: CallCost | None = None,
        usage: Usage | None = None,
        max_wait: float = 0.0,
        retry_refused: int = 0,
    ) -> None:
        self._guard = Guard(limits, profile, cost, usage, max_wait, retry_refused)

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Send a request by a handler, once its limits allow it."""
        exchange = _AiohttpExchange(request, partial(handler, request))
        return await arun_steps(call_steps(self._guard, exchange, request))


class _AiohttpExchange(HttpExchange[ClientResponse]):
    def is_repeatable(self) -> bool:
        return not self.request.body or isinstance(self.request.body, BytesPayload)

    def content(self) -> Any:
        body = self.request.body
        return parse_json(body.decode(errors="replace")) if isinstance(body, BytesPayload) else None

    def answer(self, response: ClientResponse) -> ApiAnswer:
        return ApiAnswer(response.status, response.headers)

    async def read_body(self, response: ClientResponse) -> bytes:
        body = await response.read()
        loop = asyncio.get_running_loop()
        # Its reader finds the body as if nobody had read it.
        response.content = StreamReader(BaseProtocol(loop), len(body), loop=loop)
        response.content.feed_data(body)
        response.content.feed_eof()
        return body

    def watch(self, response: ClientResponse, call: GuardedCall[ClientResponse]) -> bool:
        """The response releases its connection at the end of its body, read or not."""
        response.content = _PassingContent(response.content, call)  # type: ignore[assignment]  # it has the methods
        release = release_later(call, response.content.is_eof)
        if response.connection is None:  # the whole body came with the headers
            release()
        else:
            response.connection.add_callback(release)
        return True


#: The methods of a ``StreamReader`` that return a piece of the body.
_READS = frozenset({"read", "readany", "readline", "readuntil", "readexactly"})


class _PassingContent:
    """The content of a response, which a call watches while it is read."""

    # They call methods of _READS, and readchunk().
    __aiter__: Any = StreamReader.__aiter__
    iter_any: Any = StreamReader.iter_any
    iter_chunked: Any = StreamReader.iter_chunked
    iter_chunks: Any = StreamReader.iter_chunks

    def __init__(self, content: StreamReader, call: GuardedCall[ClientResponse]) -> None:
        self._content = content
        self._call = call

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._content, name)
        return partial(self._read, member) if name in _READS else member

    async def readchunk(self) -> tuple[bytes, bool]:
        piece, is_end = await self._content.readchunk()
        return await self._pass(piece), is_end

    async def _read(
        self, method: Callable[..., Awaitable[bytes]], *args: Any, **options: Any
    ) -> bytes:
        return await self._pass(await method(*args, **options))

    async def _pass(self, piece: bytes) -> bytes:
        self._call.feed(piece)
        if self._content.at_eof():
            await self._call.aend()
        return piece
