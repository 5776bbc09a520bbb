"""Reads headers, addresses and paths of requests of all kinds.

Clients write most of what is read here; nothing that they write makes it raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_throttle.errors import KeyValueError, shown

#: Attributes of requests that hold the environ or the scope: Django, Werkzeug, Starlette.
_ATTRIBUTES = ("META", "environ", "scope")

#: Headers that an environ has without the prefix HTTP_.
_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")


class RequestInfo(NamedTuple):
    """A WSGI environ or an ASGI scope, read in one way. Made by :meth:`of`."""

    mapping: Mapping[str, Any]

    @classmethod
    def of(cls, request: Any) -> RequestInfo:
        """Read an environ, a scope, or a framework's request that holds one; else KeyValueError."""
        for found in (request, *(getattr(request, name, None) for name in _ATTRIBUTES)):
            if isinstance(found, Mapping) and ("REQUEST_METHOD" in found or "type" in found):
                return cls(found)
        raise KeyValueError(
            f"{shown(request)} is no request; allowed: a WSGI environ, an ASGI scope, or a request "
            "of a framework that holds one"
        )

    def header_values(self, name: str) -> list[str]:
        """Return the values of a header, in order. A WSGI server has joined them into one."""
        if self._is_environ:
            key = name.upper().replace("-", "_")
            value = self.mapping.get(key if key in _UNPREFIXED else f"HTTP_{key}")
            return [] if value is None else [str(value)]
        wanted = name.lower().encode("ascii")
        pairs = self.mapping.get("headers") or ()
        return [value.decode("latin-1") for given, value in pairs if given.lower() == wanted]

    @property
    def peer(self) -> str:
        """The address that the connection came from; empty if the server does not say."""
        if self._is_environ:
            return str(self.mapping.get("REMOTE_ADDR") or "")
        client = self.mapping.get("client")
        return str(client[0]) if client else ""

    @property
    def method_and_path(self) -> tuple[str, str]:
        """For example ``("GET", "/orders/1")``. A websocket begins with a GET."""
        get = self.mapping.get
        if not self._is_environ:
            return str(get("method") or "GET"), str(get("path") or "/")
        path = f"{get('SCRIPT_NAME') or ''}{get('PATH_INFO') or ''}"
        # WSGI passes UTF-8 decoded as Latin-1.
        path = path.encode("latin-1", "replace").decode("utf-8", "replace")
        return str(self.mapping["REQUEST_METHOD"]), path or "/"

    @property
    def _is_environ(self) -> bool:
        return "REQUEST_METHOD" in self.mapping
