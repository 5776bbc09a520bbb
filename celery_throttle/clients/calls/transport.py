"""What the transports of httpx and httpx2 share. Imports neither.

A transport acquires the limits before each request, lets them learn from the response, and watches
the body while the client reads it. A client's repeats pass the transport too, so each is limited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from celery_throttle.clients.answer import parse_json
from celery_throttle.clients.calls.body import ENCODINGS
from celery_throttle.clients.calls.call import GuardedCall, call_steps
from celery_throttle.clients.calls.guard import CallCost, Guard, GuardedLimits, Usage
from celery_throttle.clients.calls.http import HttpExchange
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.errors import ThrottleError
from celery_throttle.store.steps import arun_steps, run_steps, run_to_end


class PassingBody:
    """A body, sync or async, that a call watches. It ends the call when the client closes it."""

    def __init__(self, stream: Any, call: GuardedCall[Any]) -> None:
        self._stream = stream
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._call.feed(piece)
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._call.feed(piece)
            yield piece

    def close(self) -> None:
        """Close the body, and end the call."""
        try:
            self._stream.close()
        finally:
            self._call.end()

    async def aclose(self) -> None:
        """Close the body, and end the call."""
        try:
            await self._stream.aclose()
        finally:
            await self._call.aend()


class Interrupt(BaseException):
    """Carries an error of this package out of an SDK, which repeats or wraps any ``Exception``."""

    def __init__(self, error: ThrottleError) -> None:
        super().__init__(error)
        self.error = error


class _HttpxExchange(HttpExchange[Any]):
    is_decoded = False
    is_in_sdk = False

    def __init__(self, request: Any, send: Callable[[], Any], body_type: type) -> None:
        super().__init__(request, send)
        self._body_type = body_type

    def is_repeatable(self) -> bool:
        return self._content() is not None

    def content(self) -> Any:
        return parse_json(self._content())

    def _content(self) -> bytes | None:
        try:
            content: bytes = self.request.content
        except RuntimeError:  # RequestNotRead: the body is a stream
            return None
        return content

    def read_body(self, response: Any) -> Any:
        if response.is_closed:  # a hook has read it
            return response.read()
        raw = b"".join(response.stream)
        response.stream.close()
        return _restore_body(response, raw)

    def give_up(self, response: Any) -> None:
        if self.is_in_sdk:  # both openai and anthropic read this header
            response.headers["x-should-retry"] = "false"

    def watch(self, response: Any, call: GuardedCall[Any]) -> bool:
        if response.is_closed:
            return False
        response.stream = self._body_type(response.stream, call)
        return True


class _AsyncHttpxExchange(_HttpxExchange):
    async def read_body(self, response: Any) -> Any:
        if response.is_closed:
            return await response.aread()
        raw = b"".join([piece async for piece in response.stream])
        await response.stream.aclose()
        return _restore_body(response, raw)

    def close(self, response: Any) -> Any:
        return run_to_end(response.aclose)


def _restore_body(response: Any, raw: bytes) -> Any:
    """Let the client read a body as if nobody had. Return it decoded."""
    copy = type(response)(response.status_code, headers=response.headers, content=raw)
    response.stream = copy.stream
    return copy.content


class GuardedTransport:
    """The base of the transports. A subclass names the types of its client."""

    _body_type: type  #: a :class:`PassingBody` of the client
    _default_type: type  #: of the transport that sends, if none is given

    #: Whether an SDK sends by this transport. It would repeat requests by itself, and wrap errors.
    is_in_sdk = False

    def __init__(
        self,
        limits: GuardedLimits,
        transport: Any = None,
        *,
        profile: Profile = GENERIC,
        cost: CallCost | None = None,
        usage: Usage | None = None,
        max_wait: float = 0.0,
        retry_refused: int = 0,
    ) -> None:
        self._guard = Guard(limits, profile, cost, usage, max_wait, retry_refused)
        self._transport = self._default_type() if transport is None else transport

    def _exchange(self, request: Any, kind: type[_HttpxExchange], send: Any) -> _HttpxExchange:
        if self._guard.reads_bodies:
            request.headers["accept-encoding"] = ENCODINGS
        exchange = kind(request, partial(send, request), self._body_type)
        exchange.is_in_sdk = self.is_in_sdk
        return exchange

    @property
    def _interrupts(self) -> tuple[type[ThrottleError], ...]:
        """The errors that must leave an SDK as they are."""
        return (ThrottleError,) if self.is_in_sdk else ()


class SyncGuardedTransport(GuardedTransport):
    """The transports of blocking clients."""

    def handle_request(self, request: Any) -> Any:
        """Send a request once its limits allow it.

        Args:
            request: The request.

        Raises:
            Throttled: The limits do not allow the request within ``max_wait``; nothing was sent. In
                a task that a worker runs, the task joins its line.
            StoreUnavailableError: The limits server cannot be reached, and not all of the
                limits are ``outage open``; nothing was sent.
            LimitFunctionError: A function raised, or returned a wrong value; nothing was sent.
            UnknownLimitError: A limit is not defined.
        """
        exchange = self._exchange(request, _HttpxExchange, self._transport.handle_request)
        try:
            return run_steps(call_steps(self._guard, exchange, request))
        except self._interrupts as error:
            raise Interrupt(error) from None

    def close(self) -> None:
        """Close the transport that sends the requests."""
        self._transport.close()


class AsyncGuardedTransport(GuardedTransport):
    """The transports of asyncio's clients."""

    async def handle_async_request(self, request: Any) -> Any:
        """The asyncio twin of ``handle_request()``.

        Args:
            request: The request.
        """
        send = self._transport.handle_async_request
        exchange = self._exchange(request, _AsyncHttpxExchange, send)
        try:
            return await arun_steps(call_steps(self._guard, exchange, request))
        except self._interrupts as error:
            raise Interrupt(error) from None

    async def aclose(self) -> None:
        """Close the transport that sends the requests."""
        await self._transport.aclose()
