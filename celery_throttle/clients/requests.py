"""requests: an adapter that acquires limits before each request and learns from the responses."""

from __future__ import annotations

from functools import partial
from typing import Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from celery_throttle.clients.calls.call import GuardedCall, call_steps
from celery_throttle.clients.calls.guard import CallCost, Guard, GuardedLimits, Usage
from celery_throttle.clients.calls.http import HttpExchange
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.clients.urllib3 import watch_body
from celery_throttle.store.steps import run_steps


class ThrottledAdapter(BaseAdapter):
    """An adapter that acquires limits before each request and learns from each response.

    The arguments ``limits``, ``profile``, ``cost``, ``usage``, ``max_wait`` and ``retry_refused``,
    and their defaults, are those of :class:`~celery_throttle.clients.httpx.ThrottledTransport`.
    Functions take the ``requests.PreparedRequest``. A file or a generator as the body counts as a
    stream.

    Args:
        adapter: The adapter that sends the requests; default ``requests.adapters.HTTPAdapter()``.
            Its own retries (``max_retries``) do not acquire the limits again.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            session = requests.Session()
            session.mount("https://api.stripe.com", ThrottledAdapter(throttle["stripe"]))
    """

    def __init__(
        self,
        limits: GuardedLimits,
        adapter: BaseAdapter | None = None,
        *,
        profile: Profile = GENERIC,
        cost: CallCost | None = None,
        usage: Usage | None = None,
        max_wait: float = 0.0,
        retry_refused: int = 0,
    ) -> None:
        super().__init__()
        self._guard = Guard(limits, profile, cost, usage, max_wait, retry_refused)
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(
        self, request: requests.PreparedRequest, *args: Any, **options: Any
    ) -> requests.Response:
        """Send a request once its limits allow it.

        It raises the errors of
        :meth:`~celery_throttle.clients.httpx.ThrottledTransport.handle_request`.

        Args:
            request: The request.
            args: Passed to the ``send()`` of the adapter.
            options: Passed to the ``send()`` of the adapter, such as ``timeout``.
        """
        send = partial(self._adapter.send, request, *args, **options)
        return run_steps(call_steps(self._guard, _RequestsExchange(request, send), request))

    def close(self) -> None:
        """Close the adapter that sends the requests."""
        self._adapter.close()


class _RequestsExchange(HttpExchange[requests.Response]):
    def read_body(self, response: requests.Response) -> Any:
        return response.content

    def watch(self, response: Any, call: GuardedCall[requests.Response]) -> bool:
        raw = response.raw
        if getattr(response, "_content_consumed", False) or not hasattr(raw, "release_conn"):
            return False
        watch_body(raw, call)
        return True
