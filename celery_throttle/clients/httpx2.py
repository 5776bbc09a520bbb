"""httpx2: transports that acquire limits before each request and learn from the responses."""

from __future__ import annotations

import httpx2

from celery_throttle.clients.calls.transport import (
    AsyncGuardedTransport,
    PassingBody,
    SyncGuardedTransport,
)


class _Body(PassingBody, httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body of httpx2."""


class ThrottledTransport(SyncGuardedTransport, httpx2.BaseTransport):
    """:class:`celery_throttle.clients.httpx.ThrottledTransport` for ``httpx2.Client``.

    Args:
        limits: As there, of an ``httpx2.Request``.
        transport: Default ``httpx2.HTTPTransport()``.
        profile: As there.
        cost: As there.
        usage: As there.
        max_wait: As there; default 0.
        retry_refused: As there; default 0.
    """

    _body_type = _Body
    _default_type = httpx2.HTTPTransport


class AsyncThrottledTransport(AsyncGuardedTransport, httpx2.AsyncBaseTransport):
    """The asyncio twin of :class:`ThrottledTransport`, for ``httpx2.AsyncClient``.

    Args:
        limits: As there, of an ``httpx2.Request``.
        transport: Default ``httpx2.AsyncHTTPTransport()``.
        profile: As there.
        cost: As there.
        usage: As there.
        max_wait: As there; default 0.
        retry_refused: As there; default 0.
    """

    _body_type = _Body
    _default_type = httpx2.AsyncHTTPTransport
