"""requests: an adapter that asks limits before each request, and learns from the answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from celery_throttle.clients.guarded_call import Passage
from celery_throttle.clients.http import HttpOutbound, Units
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard


class ThrottledAdapter(BaseAdapter):
    """``session.mount("https://api.stripe.com", ThrottledAdapter(throttle["stripe"]))``.

    Args:
        limit: or several; see :class:`~celery_throttle.clients.http.HttpOutbound`.
        adapter: what sends; ``requests.adapters.HTTPAdapter()`` unless given. What it sends again
            by itself (``max_retries``) does not ask the limits again.
        key, cost: may be functions of the ``requests.PreparedRequest``.
        max_wait: seconds that a request waits for its limits at most; default 0.
        usage: a function of the ``requests.Response``: what it was worth. Its body is read whole
            before, also with ``stream=True``.
        unit: see there.
        retry_429: see :class:`celery_throttle.clients.httpx.ThrottledTransport`; a file or a
            generator as the body counts as a stream.

    Raises (by each request): as :class:`celery_throttle.clients.httpx.ThrottledTransport`.
    """

    def __init__(
        self,
        limit: LimitHandles,
        adapter: BaseAdapter | None = None,
        *,
        key: Callable[[requests.PreparedRequest], Any] | None = None,
        cost: Any = None,
        max_wait: float = 0.0,
        usage: Callable[[requests.Response], Any] | None = None,
        unit: Units | None = None,
        retry_429: int = 0,
    ) -> None:
        super().__init__()
        self._outbound = HttpOutbound(
            limit,
            key=key,
            cost=cost,
            max_wait=max_wait,
            usage=usage,
            unit=unit,
            retry_429=retry_429,
        )
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(
        self, request: requests.PreparedRequest, *args: Any, **options: Any
    ) -> requests.Response:
        """Send a request once its limits allow it."""
        passage = self._outbound.passage(request)
        passage.begin()
        response, refusal = self._attempt(passage, request, *args, **options)
        while refusal is not None and (following := passage.again(refusal)) is not None:
            passage = following
            response, refusal = self._attempt(passage, request, *args, **options)
        if passage.slot is not None:
            _end_with(response, passage)
        return response

    def _attempt(
        self, passage: Passage, request: requests.PreparedRequest, *args: Any, **options: Any
    ) -> tuple[requests.Response, Heard | None]:
        """The answer; and what it says, if the request is to be sent again."""
        try:
            response = self._adapter.send(request, *args, **options)
        except BaseException:
            passage.end()
            raise
        try:
            heard = self._outbound.heard(passage, response.status_code, response.headers)
            again = passage.may_go_again(heard) and _is_kept(request)
            whole = passage.slot and not options.get("stream")
            if again or whole or self._outbound.usage is not None:
                _ = response.content  # reads it
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
        self._adapter.close()


def _is_kept(request: requests.PreparedRequest) -> bool:
    """Whether a request can be sent again: a stream may have been read to its end."""
    return request.body is None or isinstance(request.body, (bytes, str))


def _end_with(response: Any, passage: Passage) -> None:
    """Give the slot back when the body was read, or the answer closed."""
    raw = response.raw
    if getattr(response, "_content_consumed", False) or not hasattr(raw, "release_conn"):
        passage.end()
        return

    def then_end(inner: Callable[[], None]) -> Callable[[], None]:
        @wraps(inner)
        def ending() -> None:
            inner()
            passage.end()

        return ending

    # urllib3 lets go of its connection at the end of a body, requests when it is closed before.
    raw.release_conn, raw.close = then_end(raw.release_conn), then_end(raw.close)
