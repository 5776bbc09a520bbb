"""aiohttp: a client middleware that asks limits before each request and learns from answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import (
    BytesPayload,
    ClientHandlerType,
    ClientMiddlewareType,
    ClientRequest,
    ClientResponse,
)

from celery_throttle.clients.guarded_call import Passage
from celery_throttle.clients.http import HttpOutbound, Units
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard


def throttled(
    limit: LimitHandles,
    *,
    key: Callable[[ClientRequest], Any] | None = None,
    cost: Any = None,
    max_wait: float = 0.0,
    usage: Callable[[ClientResponse], Any] | None = None,
    unit: Units | None = None,
    retry_429: int = 0,
) -> ClientMiddlewareType:
    """``aiohttp.ClientSession(middlewares=[throttled(throttle["stripe"])])``.

    Args:
        limit: or several; see :class:`~celery_throttle.clients.http.HttpOutbound`.
        key: a function of the ``aiohttp.ClientRequest``.
        cost: likewise, or units.
        max_wait: seconds that a request waits for its limits at most; default 0.
        usage: a function, or a coroutine function, of the ``aiohttp.ClientResponse``: what it was
            worth, of ``await response.json()``, say.
        unit: see there.
        retry_429: see :class:`celery_throttle.clients.httpx.ThrottledTransport`; whatever is not
            text, bytes, JSON or a form without files counts as a stream.

    Raises (by each request): as :class:`celery_throttle.clients.httpx.ThrottledTransport`.
    """
    outbound = HttpOutbound(
        limit,
        key=key,
        cost=cost,
        max_wait=max_wait,
        usage=usage,
        unit=unit,
        retry_429=retry_429,
    )

    async def attempt(
        request: ClientRequest, handler: ClientHandlerType, passage: Passage
    ) -> tuple[ClientResponse, Heard | None]:
        """The answer; and what it says, if the request is to be sent again."""
        try:
            response = await handler(request)
        except BaseException:
            await passage.aend()
            raise
        try:
            heard = outbound.heard(passage, response.status, response.headers)
            again = passage.may_go_again(heard) and _is_kept(request)
            if again or outbound.usage is not None:
                await response.read()
            await passage.aanswered(heard, response)
        except BaseException:
            response.close()
            await passage.aend()
            raise
        if again:
            await passage.aend()
        return response, heard if again else None

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        passage = outbound.passage(request)
        await passage.abegin()
        response, refusal = await attempt(request, handler, passage)
        while refusal is not None and (following := await passage.aagain(refusal)) is not None:
            passage = following
            response, refusal = await attempt(request, handler, passage)
        await _end_with(response, passage)
        return response

    return middleware


def _is_kept(request: ClientRequest) -> bool:
    """Whether a request can be sent again: a stream may have been read to its end."""
    return not request.body or isinstance(request.body, BytesPayload)


async def _end_with(response: aiohttp.ClientResponse, passage: Passage) -> None:
    """Give the slot back when the answer lets go of its connection: at the end of its body."""
    if passage.slot is None:
        return
    connection = response.connection
    if connection is None:
        await passage.aend()
        return
    loop = asyncio.get_running_loop()
    ends = set[asyncio.Task[None]]()

    def end() -> None:
        task = loop.create_task(passage.aend())
        ends.add(task)  # the loop itself would forget it
        task.add_done_callback(ends.discard)

    connection.add_callback(end)
