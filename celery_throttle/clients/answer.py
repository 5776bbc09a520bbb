"""Answers of APIs, in one form for the responses and exceptions of all clients and SDKs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from http import HTTPStatus
from typing import Any

#: Longer bodies are not read for codes: errors of vendors have some hundred bytes.
MAX_BODY_BYTES = 1_000_000


class ApiAnswer:
    """The answer to one request.

    Args:
        status: The status code; None if the client does not tell it.
        headers: The header fields of any client; names in any case. Values may be text, bytes, or
            lists of texts. The values of a repeated field are joined with commas (RFC 9110, 5.3).
        read_body: Returns the body: text, bytes, or what its JSON stands for. Called at most once,
            and only if a profile looks into the body.

    Attributes:
        status: See above.
        headers: The fields as texts, by their names in lower case.
    """

    def __init__(
        self,
        status: int | None,
        headers: Any = None,
        read_body: Callable[[], Any] | None = None,
    ) -> None:
        self.status = status
        self.headers = _fields(headers) if headers else {}
        self._read_body = read_body

    def with_body(self, read_body: Callable[[], Any]) -> ApiAnswer:
        """Return the same answer, with its body; see ``read_body``."""
        return ApiAnswer(self.status, self.headers, read_body)

    @property
    def has_body(self) -> bool:
        """Whether the body is known, or can be read."""
        return self._read_body is not None

    @property
    def is_error(self) -> bool:
        """Whether the status says that the request failed; then the body is short."""
        return self.status is not None and self.status >= HTTPStatus.BAD_REQUEST

    @cached_property
    def _raw(self) -> Any:
        return None if self._read_body is None else self._read_body()

    @cached_property
    def text(self) -> str:
        """The body as text; empty if it is not known."""
        raw = self._raw
        if isinstance(raw, (bytes, bytearray)):
            return raw[:MAX_BODY_BYTES].decode(errors="replace")
        if raw is None or isinstance(raw, str):
            return raw or ""
        return json.dumps(raw, default=str)

    @cached_property
    def body(self) -> Any:
        """What the JSON of the body stands for; None if it is no JSON."""
        raw = self._raw
        if raw is None or not isinstance(raw, (str, bytes, bytearray)):
            return raw
        return None if len(raw) > MAX_BODY_BYTES else parse_json(raw)

    def find(self, path: str) -> list[str]:
        """Return the texts and numbers at a path in the body; ``*`` is each item of a list.

        Args:
            path: Such as ``errors.*.extensions.code``.
        """
        found = [self.body]
        for name in path.split("."):
            found = [part for one in found for part in _parts(one, name)]
        return [str(one) for one in found if isinstance(one, (str, int, float))]


def _parts(value: Any, name: str) -> list[Any]:
    if name == "*":
        return list(value) if isinstance(value, list) else []
    return [value[name]] if isinstance(value, Mapping) and name in value else []


def _fields(headers: Any) -> dict[str, str]:
    """Return the fields as texts, by their names in lower case."""
    items = getattr(headers, "items", None)
    # httpx joins repeated fields itself, as botocore's plain dicts do; others yield each.
    pairs = items() if callable(items) else headers
    found: dict[str, str] = {}
    for name, value in pairs:
        key = _text(name).lower()
        is_several = isinstance(value, (list, tuple))
        text = ", ".join(map(_text, value)) if is_several else _text(value)
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


# Other numbers are codes of a vendor, not statuses.
_STATUSES = range(100, 1000)

# Where the exceptions of SDKs keep the parts of an answer.
_STATUS_FIELDS = ("status_code", "http_status", "status", "code")
_BODY_FIELDS = ("body", "json_body", "data", "details", "content")


def of_error(error: BaseException) -> ApiAnswer:
    """Return the answer that an exception of an SDK stands for.

    It understands the exceptions of openai, anthropic, google-genai, google-api-core, botocore,
    stripe, PyGithub, slack_sdk, twilio, requests, httpx, aiohttp, urllib, and others like them.

    Args:
        error: The exception.
    """
    response = getattr(error, "response", None)
    if isinstance(response, Mapping) and "ResponseMetadata" in response:  # botocore
        about = response["ResponseMetadata"]
        return ApiAnswer(about.get("HTTPStatusCode"), about.get("HTTPHeaders"), lambda: response)
    status = next(filter(None, (_status(one) for one in (error, response))), None)
    headers = next(filter(None, (_headers(one) for one in (response, error))), None)
    return ApiAnswer(status, headers, lambda: _body(error, response))


def parse_json(text: Any) -> Any:
    """Return what a JSON text stands for; None for anything else, or if it is nested too deep.

    :meta private:
    """
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # an API decides how deep its answer is
        return None


def _status(value: Any) -> int | None:
    for name in _STATUS_FIELDS:
        found = getattr(value, name, None)
        if isinstance(found, int) and int(found) in _STATUSES:
            return int(found)
    return None


def _headers(value: Any) -> Any:
    headers = getattr(value, "headers", None)
    return headers if callable(getattr(headers, "items", None)) else None


def _body(error: BaseException, response: Any) -> Any:
    for source in (error, response):
        for name in _BODY_FIELDS:
            with suppress(Exception):  # httpx raises for a body that nobody has read
                found = getattr(source, name, None)
                if found and isinstance(found, (str, bytes, Mapping, list)):
                    return found
    return str(error)
