"""httpx: transports that ask limits before each request, and learn from the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx

from celery_throttle.clients.guarded_call import Passage
from celery_throttle.clients.http import HttpOutbound, Units
from celery_throttle.leases import run_to_end
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard


class ThrottledTransport(httpx.BaseTransport):
    """``httpx.Client(transport=ThrottledTransport(throttle["stripe"]))``.

    Args:
        limit: or several; see :class:`~celery_throttle.clients.http.HttpOutbound`.
        transport: what sends; ``httpx.HTTPTransport()`` unless given.
        key, cost: may be functions of the ``httpx.Request``.
        max_wait: seconds that a request waits for its limits at most; default 0.
        usage: a function of the ``httpx.Response``: what it was worth. Its body is read whole
            before, also of one that is to be streamed.
        unit: see there.
        retry_429: how often a request is sent again that the API refused: once its limits go on,
            and with the units that it needs taken anew. Its body must be in memory: one that is a
            stream is gone after the first time. Within a task that a worker runs, the task steps
            into its line instead, so often at most in all its runs. Default 0.

    Raises (by each request):
        Throttled: the limits do not allow it in time. Within a task that a worker runs, that lets
            the task step into its line.
        StoreUnavailableError: the server of the limits cannot be reached, and they are not all
            ``outage open``.
    """

    def __init__(
        self,
        limit: LimitHandles,
        transport: httpx.BaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[httpx.Response], Any] | None = None,
        unit: Units | None = None,
        retry_429: int = 0,
    ) -> None:
        self._outbound = HttpOutbound(
            limit,
            key=key,
            cost=cost,
            max_wait=max_wait,
            usage=usage,
            unit=unit,
            retry_429=retry_429,
        )
        self._transport = httpx.HTTPTransport() if transport is None else transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once its limits allow it."""
        passage = self._outbound.passage(request)
        passage.begin()
        response, refusal = self._attempt(request, passage)
        while refusal is not None and (following := passage.again(refusal)) is not None:
            passage = following
            response, refusal = self._attempt(request, passage)
        if response.is_closed:
            passage.end()
        elif passage.slot is not None:
            response.stream = _Held(response.stream, passage)
        return response

    def _attempt(
        self, request: httpx.Request, passage: Passage
    ) -> tuple[httpx.Response, Heard | None]:
        """The answer; and what it says, if the request is to be sent again."""
        try:
            response = self._transport.handle_request(request)
        except BaseException:
            passage.end()
            raise
        try:
            heard = self._outbound.heard(passage, response.status_code, response.headers)
            again = passage.may_go_again(heard) and _is_kept(request)
            if again or self._outbound.usage is not None:
                response.read()
            passage.answered(heard, response)
        except BaseException:
            response.close()
            passage.end()
            raise
        if again:
            passage.end()
        return response, heard if again else None

    def close(self) -> None:
        """Close what sends."""
        self._transport.close()


class AsyncThrottledTransport(httpx.AsyncBaseTransport):
    """``httpx.AsyncClient(transport=AsyncThrottledTransport(throttle["stripe"]))``.

    As :class:`ThrottledTransport`, for asyncio; ``transport`` is ``httpx.AsyncHTTPTransport()``
    unless given.
    """

    def __init__(
        self,
        limit: LimitHandles,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        key: Callable[[httpx.Request], Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[httpx.Response], Any] | None = None,
        unit: Units | None = None,
        retry_429: int = 0,
    ) -> None:
        self._outbound = HttpOutbound(
            limit,
            key=key,
            cost=cost,
            max_wait=max_wait,
            usage=usage,
            unit=unit,
            retry_429=retry_429,
        )
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once its limits allow it."""
        passage = self._outbound.passage(request)
        await passage.abegin()
        response, refusal = await self._attempt(request, passage)
        while refusal is not None and (following := await passage.aagain(refusal)) is not None:
            passage = following
            response, refusal = await self._attempt(request, passage)
        if response.is_closed:
            await passage.aend()
        elif passage.slot is not None:
            response.stream = _AsyncHeld(response.stream, passage)
        return response

    async def _attempt(
        self, request: httpx.Request, passage: Passage
    ) -> tuple[httpx.Response, Heard | None]:
        """See :class:`ThrottledTransport`."""
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException:
            await passage.aend()
            raise
        try:
            heard = self._outbound.heard(passage, response.status_code, response.headers)
            again = passage.may_go_again(heard) and _is_kept(request)
            if again or self._outbound.usage is not None:
                await response.aread()
            await passage.aanswered(heard, response)
        except BaseException:
            await run_to_end(response.aclose())
            await passage.aend()
            raise
        if again:
            await passage.aend()
        return response, heard if again else None

    async def aclose(self) -> None:
        """Close what sends."""
        await self._transport.aclose()


def _is_kept(request: httpx.Request) -> bool:
    """Whether a request can be sent again: a stream may have been read to its end."""
    return isinstance(request.stream, httpx.ByteStream)


class _Held(httpx.SyncByteStream):
    """A body; the slot is given back when it is closed, as httpx does at its end."""

    def __init__(self, stream: Any, passage: Passage) -> None:
        self._stream = stream
        self._passage = passage

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._passage.end()


class _AsyncHeld(httpx.AsyncByteStream):
    """The same for asyncio."""

    def __init__(self, stream: Any, passage: Passage) -> None:
        self._stream = stream
        self._passage = passage

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._passage.aend()
