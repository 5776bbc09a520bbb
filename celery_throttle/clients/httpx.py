"""httpx: transports that acquire limits before each request and learn from the responses."""

from __future__ import annotations

import httpx

from celery_throttle.clients.calls.transport import (
    AsyncGuardedTransport,
    PassingBody,
    SyncGuardedTransport,
)


class _Body(PassingBody, httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body of httpx."""


class ThrottledTransport(SyncGuardedTransport, httpx.BaseTransport):
    """A transport that acquires limits before each request and learns from each response.

    Args:
        limits: A handle such as ``throttle["stripe"]``, or a list of handles of one limiter; each
            counts requests. Or a dict of such limits by the quantity that they count:
            ``{"requests": throttle["rpm"], "tokens": throttle["tpm"]}``. Or a function of the
            ``httpx.Request`` that returns one of these, such as a handle with a key. All limits
            must allow a request. A slot (``10 at once``) is held until the body of the response has
            been read or closed.
        transport: The transport that sends the requests; default ``httpx.HTTPTransport()``.
        profile: What the vendor documents, such as
            :data:`celery_throttle.clients.profiles.OPENAI`. Default: the headers that many APIs
            share.
        cost: Units for each limit, or a dict of units by quantity, or a function of the
            ``httpx.Request`` that returns either. Default: one request, and the estimate of the
            profile.
        usage: A function that returns the actual cost, in the forms of ``cost``, from what the JSON
            of the response stands for, or of each event of a stream (``{}`` if it is not told
            there). ``cost`` is an estimate then, which the actual cost settles at the end of the
            body. Default: the profile reads it.
        max_wait: The most seconds that a request waits for its limits; default 0.
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

    _body_type = _Body
    _default_type = httpx.HTTPTransport


class AsyncThrottledTransport(AsyncGuardedTransport, httpx.AsyncBaseTransport):
    """The asyncio twin of :class:`ThrottledTransport`, for ``httpx.AsyncClient``.

    The arguments ``limits``, ``profile``, ``cost``, ``usage``, ``max_wait`` and ``retry_refused``
    are the same; the default ``transport`` is ``httpx.AsyncHTTPTransport()``.
    """

    _body_type = _Body
    _default_type = httpx.AsyncHTTPTransport
