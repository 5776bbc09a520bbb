"""What the exchanges of HTTP clients share, as most clients name the parts of a request alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_throttle.clients.answer import ApiAnswer, parse_json
from celery_throttle.clients.calls.call import Exchange, R


class HttpExchange(Exchange[R]):
    """How an HTTP client sends one request; a subclass replaces what its client has otherwise."""

    is_decoded = True

    def __init__(self, request: Any, send: Callable[[], Any]) -> None:
        self.request = request
        self.send = send

    def is_repeatable(self) -> bool:
        """Whether the body is no stream."""
        return self.request.body is None or isinstance(self.request.body, (bytes, str))

    def content(self) -> Any:
        """Return what the JSON of the body stands for; None for a stream, XML or a form."""
        return parse_json(self.request.body)

    def answer(self, response: Any) -> ApiAnswer:
        """Return the answer, without a body."""
        return ApiAnswer(response.status_code, response.headers)

    def close(self, response: Any) -> Any:
        """Drop the response."""
        response.close()
