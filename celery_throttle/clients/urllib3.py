"""urllib3: bodies that a call watches. The clients of requests and botocore send by urllib3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from celery_throttle.clients.call import GuardedCall
from celery_throttle.store.steps import run_steps


def watch_body(raw: Any, call: GuardedCall[Any]) -> None:
    """Let a call watch the body of a ``urllib3.HTTPResponse`` while it is streamed.

    The call ends with the body, or when the response is closed or gives its connection back.
    """
    read, close, is_streaming = raw.stream, raw.close, False

    def stream(*args: Any, **options: Any) -> Iterator[bytes]:
        nonlocal is_streaming
        is_streaming = True
        try:
            for piece in read(*args, **options):
                call.feed(piece)
                yield piece
        finally:
            run_steps(call.finish())

    def finishing(method: Callable[[], None]) -> Callable[[], None]:
        @wraps(method)
        def finish() -> None:
            method()
            # urllib3 releases its connection before it returns the last piece.
            if method is close or not is_streaming:
                run_steps(call.finish())

        return finish

    raw.stream = stream
    raw.release_conn, raw.close = finishing(raw.release_conn), finishing(close)
