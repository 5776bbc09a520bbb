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

    The arguments ``limits``, ``profile``, ``cost``, ``usage``, ``max_wait`` and ``retry_refused``
    are the same, for an ``httpx2.Request``; the default ``transport`` is
    ``httpx2.HTTPTransport()``.
    """

    _body_type = _Body
    _default_type = httpx2.HTTPTransport


class AsyncThrottledTransport(AsyncGuardedTransport, httpx2.AsyncBaseTransport):
    """The asyncio twin of :class:`ThrottledTransport`, for ``httpx2.AsyncClient``.

    The arguments ``limits``, ``profile``, ``cost``, ``usage``, ``max_wait`` and ``retry_refused``
    are the same; the default ``transport`` is ``httpx2.AsyncHTTPTransport()``.
    """

    _body_type = _Body
    _default_type = httpx2.AsyncHTTPTransport
