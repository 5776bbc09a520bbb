"""Key functions that identify clients by address, header or user, and requests by route.

Each takes a WSGI environ, an ASGI scope, or the request of a view. Clients that omit something or
send nonsense share a key: nobody escapes a limit by what they send, and nothing that they send
raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from celery_throttle.errors import ConfigurationError, KeyValueError, shown
from celery_throttle.inbound.rules import KeyFunction, check_function
from celery_throttle.limits.rules.rules import compile_route
from celery_throttle.store.steps import Step, Steps, run_steps

#: The key of all addresses that cannot be read.
_UNKNOWN = "unknown"

#: No address has more characters, with brackets, zone and port.
_MAX_ADDRESS_CHARACTERS = 64

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~\-]+")
_ROUTE = re.compile(r"([A-Z]+ )?[/*].*", re.DOTALL)

#: Attributes that identify a user; the first one that is set counts.
_USER_IDS = ("pk", "id", "username")

#: Attributes of requests that hold the environ or the scope: Django, Werkzeug, Starlette.
_ATTRIBUTES = ("META", "environ", "scope")

#: Headers that an environ has without the prefix HTTP_.
_UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")


def _mapping_of(request: Any) -> Mapping[str, Any]:
    """Return an environ or a scope, also that of a framework's request; else KeyValueError."""
    for found in (request, *(getattr(request, name, None) for name in _ATTRIBUTES)):
        if isinstance(found, Mapping) and ("REQUEST_METHOD" in found or "type" in found):
            return found
    raise KeyValueError(
        f"{shown(request)} is no request; allowed: a WSGI environ, an ASGI scope, or a request "
        "of a framework that holds one"
    )


def _header_values(request: Any, name: str) -> list[str]:
    """Return the values of a header, in order. A WSGI server has joined them into one."""
    mapping = _mapping_of(request)
    if "REQUEST_METHOD" in mapping:
        key = name.upper().replace("-", "_")
        value = mapping.get(key if key in _UNPREFIXED else f"HTTP_{key}")
        return [] if value is None else [str(value)]
    wanted = name.lower().encode("ascii")
    pairs = mapping.get("headers") or ()
    return [value.decode("latin-1") for given, value in pairs if given.lower() == wanted]


def _peer(request: Any) -> str:
    """Return the address that the connection came from; empty if the server does not say."""
    mapping = _mapping_of(request)
    if "REQUEST_METHOD" in mapping:
        return str(mapping.get("REMOTE_ADDR") or "")
    client = mapping.get("client")
    return str(client[0]) if client else ""


def _method_and_path(request: Any) -> tuple[str, str]:
    """Return such as ``("GET", "/orders/1")``. A websocket begins with a GET."""
    get = _mapping_of(request).get
    method = get("REQUEST_METHOD")
    if method is None:
        return str(get("method") or "GET"), str(get("path") or "/")
    path = f"{get('SCRIPT_NAME') or ''}{get('PATH_INFO') or ''}"
    # WSGI passes UTF-8 decoded as Latin-1.
    path = path.encode("latin-1", "replace").decode("utf-8", "replace")
    return str(method), path or "/"


def by_address(*, proxies: int = 0, ipv6_prefix: int = 64) -> KeyFunction:
    """Return a key function that identifies a client by its address.

    All clients whose address cannot be read, such as clients on a Unix socket, share the key
    ``"unknown"``.

    Args:
        proxies: The number of your own proxies in front of the app, 0 to 100; default 0. Each proxy
            appends an entry to ``X-Forwarded-For``, so the address of the client is the entry at
            this position from the right; entries to its left may be forged. With fewer entries, and
            with 0, the address of the connection counts.
        ipv6_prefix: The bits of an IPv6 address that count, 1 to 128; default 64, the network that
            one client usually has for itself.

    Raises:
        ConfigurationError: A number is out of range.
    """
    _check_number("proxies", proxies, 0, 100)
    _check_number("ipv6_prefix", ipv6_prefix, 1, 128)

    def key(request: Any) -> str:
        text = _peer(request)
        if proxies:
            chain = ",".join(_header_values(request, "X-Forwarded-For")).rsplit(",", proxies)
            # A chain of more pieces than proxies begins with all entries left of the client's.
            if len(chain) >= proxies and chain[-proxies].strip():
                text = chain[-proxies]
        return _address_key(text.strip(), ipv6_prefix)

    return key


def _address_key(text: str, ipv6_prefix: int) -> str:
    """Return a key such as ``203.0.113.9`` or ``2001:db8:1:2::/64``."""
    if len(text) > _MAX_ADDRESS_CHARACTERS:
        return _UNKNOWN
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return _UNKNOWN
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address), ipv6_prefix), strict=False))


def by_header(
    name: str,
    *,
    valid: Callable[[str], bool] | None = None,
    otherwise: KeyFunction | None = None,
) -> KeyFunction:
    """Return a key function that identifies a client by a header, such as ``X-Api-Key``.

    A client can send a new value, and so a new key, with each request: pass ``valid``, or also
    limit the address. Redis stores the value, and commands show it: see :doc:`/how-to/inbound` for
    a header that is a secret.

    Args:
        name: The name of the header.
        valid: A function of a value that returns whether it is valid. An invalid value counts as
            absent. Default: all values are valid.
        otherwise: The key function for requests in which the header is absent, or was sent more
            than once; default ``by_address()``.

    Raises:
        ConfigurationError: ``name`` is not the name of a header, or another argument is not a
            function.

    Example:
        ::

            key = by_header("X-Api-Key", valid=known_keys.__contains__)
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"{shown(name)} is no header; allowed: such as 'X-Api-Key'")
    if valid is not None:
        check_function(valid, "valid")
    anonymous = _anonymous(otherwise)

    def key(request: Any) -> Any:
        # Of several values an app may use the first, the last or all: a client must not get one key
        # here and be served by another.
        values = _header_values(request, name)
        value = values[0].strip() if len(values) == 1 else ""
        is_valid = bool(value) and (valid is None or valid(value))
        return value if is_valid else anonymous(request)

    return key


def by_user(*, otherwise: KeyFunction | None = None) -> KeyFunction:
    """Return a key function that identifies a client by its user.

    For a view, the key is the ``pk``, ``id`` or ``username`` of ``request.user``; for ASGI, of
    ``scope["user"]``. For WSGI, the key is ``REMOTE_USER``, if the server or a proxy sets it. In an
    async view of Django, which reads the user from its database, the key is awaitable.

    Args:
        otherwise: The key function for requests without a user; default ``by_address()``.

    Raises:
        ConfigurationError: ``otherwise`` is not a function.
    """
    anonymous = _anonymous(otherwise)

    def read(request: Any) -> Any:
        user = _user(request)
        return anonymous(request) if user is None else _user_id(user)

    def key(request: Any) -> Any:
        try:
            return read(request)
        except Exception as error:
            if type(error).__name__ != "SynchronousOnlyOperation":
                raise
            # Django reads the user from its database at first use, which it refuses in an event
            # loop: the view is async.
            from asgiref.sync import sync_to_async  # noqa: PLC0415  # comes with Django

            return sync_to_async(read)(request)

    return key


def _user(request: Any) -> Any:
    mapping = _mapping_of(request)
    # Requests of Starlette are mappings whose attribute raises without its middleware.
    user = mapping.get("user") if mapping is request else getattr(request, "user", None)
    if user is not None:
        return user if getattr(user, "is_authenticated", True) else None
    return mapping.get("REMOTE_USER") or None


def _user_id(user: Any) -> Any:
    if isinstance(user, (str, int)):
        return user
    for name in _USER_IDS:
        found = getattr(user, name, None)
        if found is not None:
            return found
    raise KeyValueError(
        f"{shown(user)} is a user without {', '.join(_USER_IDS)}; write a key function of your own"
    )


def by_route(*routes: str, others: Any = "other") -> KeyFunction:
    """Return a key function that identifies the route of a request.

    Args:
        routes: Paths such as ``"/search"``, ``"/orders/*"`` or ``"POST /login"``, in which ``*``
            matches any text. The first route that matches is the key.
        others: The key that all other requests share; default ``"other"``. With None, they are not
            limited.

    Raises:
        ConfigurationError: No route is given, or a route does not have that form.
    """
    if not routes:
        raise ConfigurationError("no route is given; allowed: such as '/search' or 'POST /login'")
    for route in routes:
        if not isinstance(route, str) or not _ROUTE.fullmatch(route):
            raise ConfigurationError(
                f"{shown(route)} is no route; allowed: such as '/search' or 'POST /login'"
            )
    patterns = [(route, compile_route(route)) for route in routes]

    def key(request: Any) -> Any:
        method, path = _method_and_path(request)
        texts = path, f"{method} {path}"
        return next((route for route, regex in patterns if any(map(regex.match, texts))), others)

    return key


def by_parts(*functions: KeyFunction) -> KeyFunction:
    """Return a key function that combines the keys of several key functions.

    If one of them returns None, the request is not limited.

    Args:
        functions: The key functions, one or more.

    Raises:
        ConfigurationError: No function is given, or an argument is not a function.

    Example:
        ::

            key = by_parts(by_address(), by_route("/login"))
    """
    if not functions:
        raise ConfigurationError("no key function is given; allowed: one or more")
    for function in functions:
        check_function(function, "key")

    return lambda request: run_steps(_join(functions, request))


def _anonymous(otherwise: KeyFunction | None) -> KeyFunction:
    """Return the key function of anonymous clients. Its keys never equal the name of a client."""
    function = by_address() if otherwise is None else otherwise
    check_function(function, "otherwise")

    return lambda request: run_steps(_join([function], request, "anonymous"))


def _join(
    functions: Sequence[KeyFunction], request: Any, *parts: Any
) -> Steps[tuple[Any, ...] | None]:
    """Return parts of a key, and those that functions return, which may be awaitable."""
    for function in functions:
        call = partial(function, request)
        part = yield Step(call, call, may_return_awaitable=True)
        if part is None:
            return None
        parts += part if isinstance(part, tuple) else (part,)
    return parts


def _check_number(name: str, value: int, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ConfigurationError(
            f"{name} must be a whole number from {least} to {most}, not {shown(value)}"
        )
