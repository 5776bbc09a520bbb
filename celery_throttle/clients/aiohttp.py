"""aiohttp: a client middleware that asks limits before each request and learns from answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse

from celery_throttle.bound import Bounds
from celery_throttle.clients.http import HttpOutbound, Units
from celery_throttle.outbound import Passage


def throttled(
    limit: Bounds,
    *,
    key: Callable[[ClientRequest], Any] | None = None,
    cost: Any = None,
    max_wait: float = 0.0,
    usage: Callable[[ClientResponse], Any] | None = None,
    unit: Units | None = None,
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

    Raises (by each request): as :class:`celery_throttle.clients.httpx.ThrottledTransport`.
    """
    outbound = HttpOutbound(limit, key=key, cost=cost, max_wait=max_wait, usage=usage, unit=unit)

    async def middleware(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        passage = outbound.passage(request)
        await passage.abegin()
        try:
            response = await handler(request)
        except BaseException:
            await passage.aend()
            raise
        try:
            heard = outbound.heard(passage, response.status, response.headers)
            if outbound.usage is not None:
                await response.read()
            await passage.aanswered(heard, response)
        except BaseException:
            response.close()
            await passage.aend()
            raise
        await _end_with(response, passage)
        return response

    return middleware


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
