"""aiohttp: a middleware that acquires limits before each request and learns from responses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import (
    BytesPayload,
    ClientHandlerType,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
)

from celery_throttle.clients.guarded_call import GuardedCall, call_steps
from celery_throttle.clients.http import HttpExchange, HttpGuard, Units
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import Costs
from celery_throttle.store.steps import arun_steps


def throttled(
    limit: LimitHandles,
    *,
    key: Callable[[ClientRequest], Any] | None = None,
    cost: Costs | Callable[[ClientRequest], Any] | None = None,
    max_wait: float = 0.0,
    usage: Callable[[ClientResponse], Any] | None = None,
    unit: Units | None = None,
    retry_refused: int = 0,
) -> ClientMiddlewareType:
    """Return a client middleware that acquires limits for requests and learns from responses.

    Each request raises :exc:`~celery_throttle.Throttled` or
    :exc:`~celery_throttle.StoreUnavailableError` under the conditions of
    :meth:`~celery_throttle.clients.httpx.ThrottledTransport.handle_request`.

    Args:
        limit: See :class:`~celery_throttle.clients.httpx.ThrottledTransport`.
        key: As for ``ThrottledTransport``; a function of the ``aiohttp.ClientRequest``.
        cost: As for ``ThrottledTransport``; units, or a function of the ``aiohttp.ClientRequest``.
            Default 1.
        max_wait: The most seconds that a request waits for its limits; default 0.
        usage: As for ``ThrottledTransport``; a function or coroutine function of the
            ``aiohttp.ClientResponse``, which may ``await response.json()``.
        unit: As for ``ThrottledTransport``.
        retry_refused: As for ``ThrottledTransport``; a body that is not text, bytes, JSON or a form
            without files counts as a stream. Default 0.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            stripe = aiohttp.ClientSession(middlewares=[throttled(throttle["stripe"])])
    """
    options: dict[str, Any] = {"key": key, "cost": cost, "max_wait": max_wait}
    guard = HttpGuard(limit, **options, usage=usage, unit=unit, retry_refused=retry_refused)

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        exchange = _AiohttpExchange(guard, request, partial(handler, request))
        return await arun_steps(call_steps(guard, exchange, request))

    return middleware


class _AiohttpExchange(HttpExchange[ClientResponse]):
    def is_repeatable(self) -> bool:
        return not self.request.body or isinstance(self.request.body, BytesPayload)

    def feedback(self, response: ClientResponse, seconds: float) -> Feedback:
        return self.guard.feedback(response.status, response.headers, seconds)

    def load(self, response: ClientResponse) -> Any:
        return response.read()

    def close(self, response: ClientResponse) -> None:
        response.close()

    def end_with_body(self, response: ClientResponse, call: GuardedCall[ClientResponse]) -> bool:
        """The response releases its connection at the end of its body."""
        connection = response.connection
        if connection is None:
            return False
        loop = asyncio.get_running_loop()
        tasks = set[asyncio.Task[None]]()

        def end() -> None:
            task = loop.create_task(arun_steps(call.end()))
            tasks.add(task)  # the loop itself keeps only a weak reference
            task.add_done_callback(tasks.discard)

        connection.add_callback(end)
        return True
