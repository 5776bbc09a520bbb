"""urllib3: pool managers whose requests acquire limits. requests and botocore send by urllib3."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Any

import urllib3

from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.calls.call import GuardedCall, call_steps
from celery_throttle.clients.calls.guard import Guard, GuardedLimits
from celery_throttle.clients.calls.http import HttpExchange
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.store.steps import run_steps

#: The statuses that only ``retry_refused`` repeats: urllib3 would wait in the process.
_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Urllib3Request:
    """A request of urllib3, as functions of limits and costs get it.

    Attributes:
        method: The method, such as ``"GET"``.
        host: The host that it goes to.
        path: The path and the query.
        headers: The headers; None if it has none.
        body: The body; None if it has none.
    """

    method: str
    host: str
    path: str
    headers: Any = field(repr=False)
    body: Any = field(repr=False)


def throttle_manager(manager: Any, limits: GuardedLimits, **options: Any) -> Any:
    """Return a pool manager like another one that acquires limits; see ``throttled()``."""
    options["profile"] = options["profile"] or GENERIC
    guard = Guard(limits, **options)
    copied = copy.copy(manager)
    # The pools of the other one stay with it.
    copied.pools = type(manager.pools)(manager.pools._maxsize)  # noqa: SLF001
    copied.pool_classes_by_scheme = {
        scheme: partial(_make_pool, guard, kind)
        for scheme, kind in manager.pool_classes_by_scheme.items()
    }
    return copied


def _make_pool(guard: Guard, kind: Any, *args: Any, **options: Any) -> Any:
    """Return a pool of connections in which each attempt at a request acquires limits."""
    pool = kind(*args, **options)
    pool.urlopen = partial(_urlopen, pool, pool.urlopen)
    # It has no public name; each attempt passes it, repeats and redirects included.
    pool._make_request = partial(_make_request, pool, pool._make_request, guard)  # noqa: SLF001
    return pool


def _urlopen(  # noqa: PLR0917  # as urllib3 calls it when it repeats a request
    pool: Any,
    send: Callable[..., Any],
    method: str,
    path: str,
    body: Any = None,
    headers: Any = None,
    retries: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    own = urllib3.Retry.from_int(retries, default=pool.retries)
    own = own.new(
        respect_retry_after_header=False,
        status_forcelist=set(own.status_forcelist) - set(_REFUSALS),
    )
    return send(method, path, body, headers, own, *args, **options)


def _make_request(
    pool: Any, send: Callable[..., Any], guard: Guard, *args: Any, **options: Any
) -> Any:
    _, method, path = args
    request = Urllib3Request(method, pool.host, path, options.get("headers"), options.get("body"))
    is_streamed = not options.get("preload_content", True)
    exchange = _Urllib3Exchange(request, partial(send, *args, **options), is_streamed)
    response = run_steps(call_steps(guard, exchange, request))
    if exchange.kept is not None:
        pool._put_conn(exchange.kept)  # noqa: SLF001  # likewise
    return response


class _Urllib3Exchange(HttpExchange[Any]):
    def __init__(
        self,
        request: Urllib3Request,
        send: Callable[[], Any],
        is_streamed: bool,  # noqa: FBT001
    ) -> None:
        super().__init__(request, partial(self._send, send))
        self._is_streamed = is_streamed
        #: The connection of a streamed response that was read: it may send the request again, and
        #: serves nobody else until then.
        self.kept: Any = None

    def _send(self, send: Callable[[], Any]) -> Any:
        self.kept = None
        return send()

    def answer(self, response: Any) -> ApiAnswer:
        return ApiAnswer(response.status, response.headers)

    def read_body(self, response: Any) -> Any:
        # The end of the body would give it to the pool.
        self.kept, response._connection = response._connection, None  # noqa: SLF001  # likewise
        body = response.data
        if self._is_streamed:  # its reader finds the body as if nobody had read it
            unread = urllib3.HTTPResponse(BytesIO(body), preload_content=False)
            for name in ("stream", "read", "read1"):
                if hasattr(unread, name):  # urllib3 2.0 has no read1()
                    setattr(response, name, getattr(unread, name))
        return body

    def watch(self, response: Any, call: GuardedCall[Any]) -> bool:
        if not self._is_streamed or response.closed:
            return False
        watch_body(response, call)
        return True


def watch_body(raw: Any, call: GuardedCall[Any]) -> None:
    """Let a call watch the body of a ``urllib3.HTTPResponse`` while it is streamed or read.

    The call ends with the body, or when the response is closed or gives its connection back.
    """
    _Watch(raw, call)


class _Watch:
    """Stands in for the methods of a response that pass its body on."""

    def __init__(self, raw: Any, call: GuardedCall[Any]) -> None:
        self._call = call
        self._is_passing = self._is_released = False
        raw.stream = partial(self._stream, raw.stream)
        for name in ("read", "read1"):
            if hasattr(raw, name):
                setattr(raw, name, partial(self._read, getattr(raw, name)))
        raw.release_conn = partial(self._release, raw.release_conn)
        raw.close = partial(self._close, raw.close)

    def _stream(self, method: Any, *args: Any, **options: Any) -> Iterator[bytes]:
        self._is_passing = True  # to its end: it may read
        try:
            for piece in method(*args, **options):
                self._call.feed(piece)
                yield piece
        finally:
            self._call.end()

    def _read(self, method: Any, amt: int | None = None, *args: Any, **options: Any) -> bytes:
        if self._is_passing:
            return method(amt, *args, **options)  # type: ignore[no-any-return]  # bytes
        self._is_passing, piece = True, b""
        try:
            piece = method(amt, *args, **options) or b""
            self._call.feed(piece)
        finally:
            self._is_passing = False
            if self._is_released:  # but pieces that are decoded may be left
                is_last = not amt or amt < 0 or len(piece) < amt
                run_steps(self._call.finish() if is_last else self._call.release())
        return piece

    def _release(self, method: Callable[[], None]) -> None:
        method()
        self._is_released = True
        if not self._is_passing:  # urllib3 releases its connection before it returns the last piece
            self._call.end()

    def _close(self, method: Callable[[], None]) -> None:
        method()
        self._call.end()
