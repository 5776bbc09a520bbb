"""What a request says of itself: one way to ask a WSGI environ, an ASGI scope and requests of both.

It reads what a client wrote, and no text of a client's makes it raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_throttle.errors import KeyValueError, shown

#: Where requests of frameworks keep the environ or the scope: Django, Werkzeug, Starlette.
_KEPT_AS = ("META", "environ", "scope")

#: Headers that an environ has under their plain names.
_PLAIN = ("CONTENT_TYPE", "CONTENT_LENGTH")


def facts_of(request: Any) -> Mapping[str, Any]:
    """The environ or the scope of a request, which it may be itself.

    Raises:
        KeyValueError: it is no request that has one.
    """
    for found in (request, *(getattr(request, name, None) for name in _KEPT_AS)):
        if isinstance(found, Mapping) and ("REQUEST_METHOD" in found or "type" in found):
            return found
    raise KeyValueError(
        f"{shown(request)} is no request; allowed: a WSGI environ, an ASGI scope, or a request of "
        "a framework that has one"
    )


def header(facts: Mapping[str, Any], name: str) -> str | None:
    """The value of a header; None if it is absent, empty, or was sent more than once.

    Of several values apps take the first, the last or all: a client must not get one key for
    itself and another one from the app.
    """
    values = header_values(facts, name)
    value = values[0].strip() if len(values) == 1 else ""
    return value or None


def header_values(facts: Mapping[str, Any], name: str) -> list[str]:
    """The values of a header, in order; a WSGI server has joined them to one."""
    if _is_environ(facts):
        plain = name.upper().replace("-", "_")
        value = facts.get(plain if plain in _PLAIN else f"HTTP_{plain}")
        return [] if value is None else [str(value)]
    wanted = name.lower().encode("ascii")
    pairs = facts.get("headers") or ()
    return [value.decode("latin-1") for given, value in pairs if given.lower() == wanted]


def peer(facts: Mapping[str, Any]) -> str:
    """The address from which the connection came; empty if the server does not say."""
    if _is_environ(facts):
        return str(facts.get("REMOTE_ADDR") or "")
    client = facts.get("client")
    return str(client[0]) if client else ""


def method_and_path(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Such as ``("GET", "/orders/1")``; a websocket begins with a GET."""
    if not _is_environ(facts):
        return str(facts.get("method") or "GET"), str(facts.get("path") or "/")
    path = f"{facts.get('SCRIPT_NAME') or ''}{facts.get('PATH_INFO') or ''}"
    # WSGI has its UTF-8 as Latin-1.
    path = path.encode("latin-1", "replace").decode("utf-8", "replace")
    return str(facts["REQUEST_METHOD"]), path or "/"


def _is_environ(facts: Mapping[str, Any]) -> bool:
    return "REQUEST_METHOD" in facts
