"""httpx: transports that acquire limits before each request and learn from the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import httpx

from celery_throttle.clients.guarded_call import GuardedCall, call_steps
from celery_throttle.clients.http import HttpExchange, HttpGuard, Units
from celery_throttle.leases import run_to_end
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard
from celery_throttle.steps import arun_steps, run_steps

T = TypeVar("T", httpx.BaseTransport, httpx.AsyncBaseTransport)


class _GuardedTransport(Generic[T]):
    """The limits, and the transport that sends."""

    _default: type[T]

    def __init__(
        self,
        limit: LimitHandles,
        transport: T | None = None,
        *,
        key: Callable[[httpx.Request], Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[httpx.Response], Any] | None = None,
        unit: Units | None = None,
        retry_429: int = 0,
    ) -> None:
        options: dict[str, Any] = {"key": key, "cost": cost, "max_wait": max_wait}
        self._guard = HttpGuard(limit, **options, usage=usage, unit=unit, retry_429=retry_429)
        self._transport: T = self._default() if transport is None else transport


class ThrottledTransport(_GuardedTransport[httpx.BaseTransport], httpx.BaseTransport):
    """``httpx.Client(transport=ThrottledTransport(throttle["stripe"]))``.

    Args:
        limit: one limit, or a list of limits that all have to allow. Slots (``10 at once``) are
            held until the body of the response has been read or closed.
        transport: sends the requests; default ``httpx.HTTPTransport()``.
        key: a function of the ``httpx.Request`` that returns the key of each limit that has none
            of its own. If it returns None, the limit itself applies.
        cost: units, also by the name of the limit, or a function of the ``httpx.Request`` that
            returns them; default 1.
        max_wait: seconds that a request may wait for its limits; default 0.
        usage: a function of the ``httpx.Response`` that returns the true cost; ``cost`` is only an
            estimate then. The whole body is read first, also that of a streamed response.
        unit: what the limits count; see :class:`~celery_throttle.clients.http.HttpGuard`.
        retry_429: how often a refused request is sent again. It waits until its limits go on, and
            acquires them anew. Its body must be in memory: a stream can be read only once. A task
            that runs in a worker waits in its line instead, at most so often in all its runs.
            Default 0.

    Raises (for each request):
        Throttled: the limits do not allow it in time. In a task that runs in a worker, this lets
            the task wait in its line.
        StoreUnavailableError: the server of the limits cannot be reached, and not all of the
            limits are ``outage open``.
    """

    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once its limits allow it."""
        send = partial(self._transport.handle_request, request)
        exchange = _HttpxExchange(self._guard, request, send)
        return run_steps(call_steps(self._guard, exchange, request))

    def close(self) -> None:
        """Close the transport that sends."""
        self._transport.close()


class AsyncThrottledTransport(
    _GuardedTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport
):
    """``httpx.AsyncClient(transport=AsyncThrottledTransport(throttle["stripe"]))``.

    As :class:`ThrottledTransport`, for asyncio. ``transport`` is ``httpx.AsyncHTTPTransport()`` by
    default.
    """

    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once its limits allow it."""
        send = partial(self._transport.handle_async_request, request)
        exchange = _AsyncHttpxExchange(self._guard, request, send)
        return await arun_steps(call_steps(self._guard, exchange, request))

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._transport.aclose()


class _HttpxExchange(HttpExchange[httpx.Response]):
    def is_repeatable(self) -> bool:
        return isinstance(self.request.stream, httpx.ByteStream)

    def feedback(self, response: httpx.Response, seconds: float) -> Heard:
        return self.guard.feedback(response.status_code, response.headers, seconds)

    def load(self, response: httpx.Response) -> Any:
        response.read()

    def close(self, response: httpx.Response) -> Any:
        response.close()

    def end_with_body(self, response: httpx.Response, call: GuardedCall[httpx.Response]) -> bool:
        if not response.is_closed:
            response.stream = _EndingStream(response.stream, call)
        return not response.is_closed


class _AsyncHttpxExchange(_HttpxExchange):
    def load(self, response: httpx.Response) -> Any:
        return response.aread()

    def close(self, response: httpx.Response) -> Any:
        return run_to_end(response.aclose())


class _EndingStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body, sync or async, that ends its call when httpx closes it: at its end, or before."""

    def __init__(self, stream: Any, call: GuardedCall[httpx.Response]) -> None:
        self._stream = stream
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            run_steps(self._call.end())

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await arun_steps(self._call.end())
