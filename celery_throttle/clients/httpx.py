"""httpx: transports that acquire limits before each request and learn from the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import httpx

from celery_throttle.clients.guarded_call import GuardedCall, call_steps
from celery_throttle.clients.http import HttpExchange, HttpGuard, Units
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limiter.leases import run_to_end
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import Costs
from celery_throttle.store.steps import arun_steps, run_steps

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
        cost: Costs | Callable[[httpx.Request], Any] | None = None,
        max_wait: float = 0.0,
        usage: Callable[[httpx.Response], Any] | None = None,
        unit: Units | None = None,
        retry_refused: int = 0,
    ) -> None:
        options: dict[str, Any] = {"key": key, "cost": cost, "max_wait": max_wait}
        self._guard = HttpGuard(
            limit, **options, usage=usage, unit=unit, retry_refused=retry_refused
        )
        self._transport: T = self._default() if transport is None else transport


class ThrottledTransport(_GuardedTransport[httpx.BaseTransport], httpx.BaseTransport):
    """A transport that acquires limits before each request and learns from each response.

    Args:
        limit: A handle such as ``throttle["stripe"]``, or a list of handles of one limiter. All of
            these limits must allow a request. A slot (``10 at once``) is held until the body of the
            response has been read or closed.
        transport: The transport that sends the requests; default ``httpx.HTTPTransport()``.
        key: A function of the ``httpx.Request`` that returns the key of each limit without a key.
            If it returns None, the limit itself applies. Default: the limit itself.
        cost: Units, or a dict of units by the name of the limit, or a function of the
            ``httpx.Request`` that returns either; default 1.
        max_wait: The most seconds that a request waits for its limits; default 0.
        usage: A function of the ``httpx.Response`` that returns the actual cost, in the forms of
            ``cost``. Then ``cost`` is an estimate, which the result settles. The whole body is read
            first, even if the response is streamed. Default: ``cost`` is the actual cost.
        unit: The unit that the limit counts, such as ``"tokens"``, if the API reports several
            quotas; default ``"requests"``. For several limits, a dict of units by the name of the
            limit; limits that are not in the dict do not learn from responses. Several limits
            without ``unit`` learn from refusals, but not from remaining quotas.
        retry_refused: How many times to send a request again that the API refuses, each time after
            the limits allow it again; default 0. A body that is a stream is not sent again. In a
            task that a worker runs, the task joins its line instead, at most this many times in all
            its runs.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            stripe = httpx.Client(transport=ThrottledTransport(throttle["stripe"]))
            stripe.post("https://api.stripe.com/v1/charges", data={"amount": 2000})
    """

    _default = httpx.HTTPTransport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request once its limits allow it.

        Args:
            request: The request.

        Raises:
            Throttled: The limits do not allow the request within ``max_wait``; nothing was sent. In
                a task that a worker runs, the task joins its line.
            StoreUnavailableError: The limits server cannot be reached, and not all of the
                limits are ``outage open``; nothing was sent.
            ThrottleError: A limit is not defined, or ``key`` or ``cost`` returned no valid value.
        """
        send = partial(self._transport.handle_request, request)
        exchange = _HttpxExchange(self._guard, request, send)
        return run_steps(call_steps(self._guard, exchange, request))

    def close(self) -> None:
        """Close the transport that sends the requests."""
        self._transport.close()


class AsyncThrottledTransport(
    _GuardedTransport[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport
):
    """The asyncio twin of :class:`ThrottledTransport`, for ``httpx.AsyncClient``.

    Args:
        limit: See :class:`ThrottledTransport`.
        transport: The transport that sends the requests; default ``httpx.AsyncHTTPTransport()``.
        key: See :class:`ThrottledTransport`.
        cost: As for ``ThrottledTransport``; default 1.
        max_wait: The most seconds that a request waits for its limits; default 0.
        usage: As for ``ThrottledTransport``.
        unit: As for ``ThrottledTransport``.
        retry_refused: As for ``ThrottledTransport``; default 0.
    """

    _default = httpx.AsyncHTTPTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The asyncio twin of :meth:`ThrottledTransport.handle_request`.

        Args:
            request: The request.
        """
        send = partial(self._transport.handle_async_request, request)
        exchange = _AsyncHttpxExchange(self._guard, request, send)
        return await arun_steps(call_steps(self._guard, exchange, request))

    async def aclose(self) -> None:
        """Close the transport that sends the requests."""
        await self._transport.aclose()


class _HttpxExchange(HttpExchange[httpx.Response]):
    def is_repeatable(self) -> bool:
        return isinstance(self.request.stream, httpx.ByteStream)

    def feedback(self, response: httpx.Response, seconds: float) -> Feedback:
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
