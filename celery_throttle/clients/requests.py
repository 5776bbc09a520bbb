"""requests: an adapter that acquires limits before each request and learns from the responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from celery_throttle.clients.guarded_call import GuardedCall, call_steps
from celery_throttle.clients.http import HttpExchange, HttpGuard, Units
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import Costs
from celery_throttle.store.steps import run_steps


class ThrottledAdapter(BaseAdapter):
    """An adapter that acquires limits before each request and learns from each response.

    Args:
        limit: See :class:`~celery_throttle.clients.httpx.ThrottledTransport`.
        adapter: The adapter that sends the requests; default ``requests.adapters.HTTPAdapter()``.
            Its own retries (``max_retries``) do not acquire the limits again.
        key: As for ``ThrottledTransport``; a function of the ``requests.PreparedRequest``.
        cost: As for ``ThrottledTransport``; units, or a function of the
            ``requests.PreparedRequest``. Default 1.
        max_wait: The most seconds that a request waits for its limits; default 0.
        usage: As for ``ThrottledTransport``; a function of the ``requests.Response``. The whole
            body is read first, even with ``stream=True``.
        unit: As for ``ThrottledTransport``.
        retry_refused: As for ``ThrottledTransport``; a file or a generator as the body counts as a
            stream. Default 0.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            session = requests.Session()
            session.mount("https://api.stripe.com", ThrottledAdapter(throttle["stripe"]))
    """

    def __init__(
        self,
        limit: LimitHandles,
        adapter: BaseAdapter | None = None,
        *,
        key: Callable[[requests.PreparedRequest], Any] | None = None,
        cost: Costs | Callable[[requests.PreparedRequest], Any] | None = None,
        max_wait: float = 0.0,
        usage: Callable[[requests.Response], Any] | None = None,
        unit: Units | None = None,
        retry_refused: int = 0,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"key": key, "cost": cost, "max_wait": max_wait}
        self._guard = HttpGuard(
            limit, **options, usage=usage, unit=unit, retry_refused=retry_refused
        )
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(
        self, request: requests.PreparedRequest, *args: Any, **options: Any
    ) -> requests.Response:
        """Send a request once its limits allow it.

        Args:
            request: The request.
            args: Passed to the ``send()`` of the adapter.
            options: Passed to the ``send()`` of the adapter, such as ``timeout``.

        Raises:
            Throttled: The limits do not allow the request within ``max_wait``; nothing was sent. In
                a task that a worker runs, the task joins its line.
            StoreUnavailableError: The limits server cannot be reached, and not all of the
                limits are ``outage open``; nothing was sent.
            ThrottleError: A limit is not defined, or ``key`` or ``cost`` returned no valid value.
        """
        send = partial(self._adapter.send, request, *args, **options)
        exchange = _RequestsExchange(self._guard, request, send)
        exchange.loads_body = not options.get("stream")
        return run_steps(call_steps(self._guard, exchange, request))

    def close(self) -> None:
        """Close the adapter that sends the requests."""
        self._adapter.close()


class _RequestsExchange(HttpExchange[requests.Response]):
    def is_repeatable(self) -> bool:
        return self.request.body is None or isinstance(self.request.body, (bytes, str))

    def feedback(self, response: requests.Response, seconds: float) -> Feedback:
        return self.guard.feedback(response.status_code, response.headers, seconds)

    def load(self, response: requests.Response) -> None:
        _ = response.content  # reads it

    def close(self, response: requests.Response) -> None:
        response.close()

    def end_with_body(self, response: Any, call: GuardedCall[requests.Response]) -> bool:
        raw = response.raw
        if getattr(response, "_content_consumed", False) or not hasattr(raw, "release_conn"):
            return False

        def and_end(method: Callable[[], None]) -> Callable[[], None]:
            @wraps(method)
            def ending() -> None:
                method()
                run_steps(call.end())

            return ending

        # urllib3 releases its connection at the end of a body; requests closes an unread response.
        raw.release_conn, raw.close = and_end(raw.release_conn), and_end(raw.close)
        return True
