"""A small app behind each of the two middlewares, called without a web server."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from wsgiref.util import setup_testing_defaults

from celery_throttle.inbound import ThrottledASGI, ThrottledWSGI
from celery_throttle.limiter.limiter import Limiter

HERE = "203.0.113.9"

Pairs = Sequence[tuple[str, str]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    def about(self, *names: str) -> list[str | None]:
        return [self.headers.get(name.lower()) for name in names]


@dataclass
class Asked:
    """A request; a header may occur more than once."""

    path: str = "/"
    headers: Pairs = ()
    address: str = HERE
    method: str = "GET"
    more: dict[str, Any] = field(default_factory=dict)

    def environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.method,
            "PATH_INFO": self.path.encode().decode("latin-1"),
            "REMOTE_ADDR": self.address,
            "wsgi.input": io.BytesIO(),
        }
        for name, value in self.headers:
            plain = "HTTP_" + name.upper().replace("-", "_")
            environ[plain] = f"{environ[plain]},{value}" if plain in environ else value
        environ.update(self.more)
        setup_testing_defaults(environ)
        return environ

    def scope(self, kind: str = "http") -> dict[str, Any]:
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers]
        method = {"method": self.method} if kind == "http" else {}
        return {
            "type": kind,
            "path": self.path,
            "headers": pairs,
            "client": (self.address, 4242),
            **method,
            **self.more,
        }


class Site(Protocol):
    """An app behind a middleware.

    Attributes:
        own: headers that the app sets.
        seen: the decision about each request that reached the app.
    """

    own: Pairs
    seen: list[Any]

    def ask(self, asked: Asked | None = None) -> Reply: ...


MakeSite = Callable[..., Site]


class WSGISite:
    def __init__(self, *limits: Any, **options: Any) -> None:
        self.own: Pairs = ()
        self.seen: list[Any] = []
        self.app = ThrottledWSGI(self.hello, *limits, **options)

    def hello(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        self.seen.append(environ["celery_throttle.decision"])
        start_response("200 OK", [("Content-Type", "text/plain"), *self.own])
        return [b"hello"]

    def ask(self, asked: Asked | None = None) -> Reply:
        return ask_wsgi(self.app, asked)


def ask_wsgi(app: Any, asked: Asked | None = None) -> Reply:
    started: list[tuple[str, Pairs]] = []

    def start_response(status: str, headers: Pairs, *_: Any) -> None:
        started.append((status, headers))

    body = app((asked or Asked()).environ(), start_response)
    try:
        sent = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    status, headers = started[-1]
    return Reply(int(status[:3]), _lowered(headers), sent)


class ASGISite:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Any, app: Any = None, **options: Any
    ) -> None:
        self.own: Pairs = ()
        self.seen: list[Any] = []
        self.app = ThrottledASGI(app or self.hello, limits, **options)
        self._loop = loop

    async def hello(self, scope: Any, _receive: Any, send: Any) -> None:
        self.seen.append(scope["celery_throttle.decision"])
        headers = [(name.lower().encode(), value.encode()) for name, value in self.own]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    def ask(self, asked: Asked | None = None) -> Reply:
        return self._loop.run_until_complete(ask_asgi(self.app, asked))


async def ask_asgi(app: Any, asked: Asked | None = None) -> Reply:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app((asked or Asked()).scope(), receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    headers = [(name.decode(), value.decode()) for name, value in start["headers"]]
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return Reply(start["status"], _lowered(headers), body)


def _lowered(headers: Pairs) -> dict[str, str]:
    names = [name.lower() for name, _ in headers]
    assert len(set(names)) == len(names), f"a header is there twice: {headers}"
    return {name.lower(): value for name, value in headers}


def make_sites(kind: str, limiter: Limiter | None = None) -> Iterator[MakeSite]:
    """Make sites of one kind, "wsgi" or "asgi", from the arguments of a middleware.

    ``limiter``: that of the limits that functions return.
    """
    if kind == "wsgi":
        yield WSGISite
        return
    loop = asyncio.new_event_loop()
    limiters: list[Any] = []

    def make(limits: Any, **options: Any) -> ASGISite:
        site = ASGISite(loop, limits, **options)
        handle = limits[0] if isinstance(limits, list) else limits
        limiters.append(getattr(handle, "limiter", limiter))  # a function has none
        return site

    yield make
    for each in limiters:
        loop.run_until_complete(each.store.aclose())
    loop.close()
