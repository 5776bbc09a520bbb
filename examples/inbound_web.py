"""A small web app that limits each client by its key, and all clients together.

Run::

    python -m examples.inbound_web

It starts a private server for the limits, unless THROTTLE_URL names one.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

from celery_throttle import Limiter
from celery_throttle.inbound import ThrottledWSGI, by_header
from celery_throttle.testing.server import start_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

KEYS = {"ann", "bob"}
SHOWN = ("RateLimit", "Retry-After")


def shop(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


def limited(url: str) -> ThrottledWSGI:
    limiter = Limiter(url, {"api": "30/m burst 3", "all": "100/s burst 100"})
    # Clients without a valid key are limited by their address.
    by_key = by_header("X-Api-Key", valid=KEYS.__contains__)
    return ThrottledWSGI(shop, [limiter["api"], limiter["all"]], key={"api": by_key})


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # as in the base class
        """Log nothing."""


def send(url: str, key: str) -> str:
    request = Request(url, headers={"X-Api-Key": key})  # noqa: S310  # a local server
    try:
        with urlopen(request, timeout=10) as answer:  # noqa: S310  # a local server
            status, headers = answer.status, answer.headers
    except HTTPError as error:
        status, headers = error.code, error.headers
    shown = [f"{name}: {headers[name]}" for name in SHOWN if name in headers]
    return f"{key}: {status}  {', '.join(shown)}"


def main() -> None:
    with ExitStack() as ends:
        directory = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        url = os.environ.get("THROTTLE_URL") or start_server(directory, ends)
        server = ends.enter_context(make_server("127.0.0.1", 0, limited(url), handler_class=Quiet))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ends.callback(server.shutdown)
        for key in ("ann", "ann", "ann", "ann", "bob", "random-1", "random-2"):
            print(send(f"http://127.0.0.1:{server.server_port}/", key))


if __name__ == "__main__":
    main()
