"""Ready-made key functions: who is asking, by address, header or user, and for which route.

Each takes a WSGI environ, an ASGI scope, or the request of a view. A client that leaves something
off, or sends nonsense, shares a key with others who do: nobody escapes a limit by what they send.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

from celery_throttle.errors import ConfigurationError, KeyValueError, shown
from celery_throttle.inbound.request_info import (
    facts_of,
    header,
    header_values,
    method_and_path,
    peer,
)
from celery_throttle.inbound.rules import check_function

#: A key function of a request.
ByRequest = Callable[[Any], Any]

#: The key of all addresses that cannot be read.
_UNKNOWN = "unknown"

#: No address is longer, with brackets, zone and port.
_LONGEST_ADDRESS = 64

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~\-]+")
_ROUTE = re.compile(r"([A-Z]+ )?[/*].*", re.DOTALL)

#: Which attribute of a user tells them apart; the first that there is.
_USER_IDS = ("pk", "id", "username")


def by_address(*, proxies: int = 0, ipv6_prefix: int = 64) -> ByRequest:
    """By the address of the client.

    Args:
        proxies: how many of one's own stand in front of the app, each of which adds to
            ``X-Forwarded-For``: the address is the one that many from the right, as what is left of
            it may be forged. Default 0: where the connection came from. That, too, if the header
            has fewer entries: the request did not come through all of them.
        ipv6_prefix: bits of an IPv6 address that count, 1 to 128; default 64, the network that one
            client usually has to itself.

    Raises:
        ConfigurationError: a number is not allowed.
    """
    _check_number("proxies", proxies, 0, 100)
    _check_number("ipv6_prefix", ipv6_prefix, 1, 128)

    def key(request: Any) -> str:
        facts = facts_of(request)
        text = peer(facts)
        if proxies:
            chain = ",".join(header_values(facts, "X-Forwarded-For")).rsplit(",", proxies)
            # One piece more than that is what is left of it; one piece of nothing is no entry.
            if len(chain) >= proxies and chain[-proxies].strip():
                text = chain[-proxies]
        return _address_key(text.strip(), ipv6_prefix)

    return key


def _address_key(text: str, ipv6_prefix: int) -> str:
    """Such as ``203.0.113.9`` or ``2001:db8:1:2::/64``."""
    if len(text) > _LONGEST_ADDRESS:
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
    otherwise: ByRequest | None = None,
) -> ByRequest:
    """By the value of a header, such as ``X-Api-Key``.

    A client can send any value, and so a new key with each request: say by ``valid`` which there
    are, or limit the address as well.

    Args:
        name: of the header.
        valid: whether a value is one of those that there are; one that is not counts as absent.
        otherwise: the key function where it is absent, or was sent twice; default
            :func:`by_address`.

    Raises:
        ConfigurationError: the name is none of a header, or another argument is no function.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"{shown(name)} is no header; allowed: such as 'X-Api-Key'")
    if valid is not None:
        check_function(valid, "valid")
    without = _otherwise(otherwise)

    def key(request: Any) -> Any:
        value = header(facts_of(request), name)
        if value is None or (valid is not None and not valid(value)):
            return without(request)
        return value

    return key


def by_user(*, otherwise: ByRequest | None = None) -> ByRequest:
    """By the user who has signed in.

    In a view, or in an ASGI app, by ``request.user``: its ``pk``, ``id`` or ``username``. Around a
    WSGI app by ``REMOTE_USER``, if the server or what stands in front sets it.

    Args:
        otherwise: the key function for those who have not signed in; default :func:`by_address`.

    Raises:
        ConfigurationError: it is no function.
    """
    without = _otherwise(otherwise)

    def key(request: Any) -> Any:
        user = _user(request)
        return without(request) if user is None else _user_id(user)

    return key


def _user(request: Any) -> Any:
    facts = facts_of(request)
    # Starlette's requests are mappings, and ask for a middleware when they are asked for a user.
    user = facts.get("user") if facts is request else getattr(request, "user", None)
    if user is not None:
        return user if getattr(user, "is_authenticated", True) else None
    return facts.get("REMOTE_USER") or None


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


def by_route(*routes: str, others: Any = "other") -> ByRequest:
    """By the route that is asked for.

    Args:
        routes: paths such as ``"/search"``, ``"/orders/*"`` or ``"POST /login"``, in which ``*`` is
            any text; the first that fits is the key.
        others: the key of all that none of them fits, which they share; None: those are not
            limited.

    Raises:
        ConfigurationError: there is no route, or one is not of that form.
    """
    if not routes:
        raise ConfigurationError("no route is given; allowed: such as '/search' or 'POST /login'")
    for route in routes:
        if not isinstance(route, str) or not _ROUTE.fullmatch(route):
            raise ConfigurationError(
                f"{shown(route)} is no route; allowed: such as '/search' or 'POST /login'"
            )
    patterns = [(route, re.compile(translate(route))) for route in routes]

    def key(request: Any) -> Any:
        method, path = method_and_path(facts_of(request))
        asked = path, f"{method} {path}"
        return next((route for route, fits in patterns if any(map(fits.match, asked))), others)

    return key


def by_parts(*functions: ByRequest) -> ByRequest:
    """By several together: ``by_parts(by_address(), by_route("/login"))``.

    None if one of them gives None: the request is not limited.

    Raises:
        ConfigurationError: there is none, or one is no function.
    """
    if not functions:
        raise ConfigurationError("no key function is given; allowed: one or more")
    for function in functions:
        check_function(function, "key")

    def key(request: Any) -> Any:
        parts: list[Any] = []
        for function in functions:
            part = function(request)
            if part is None:
                return None
            parts += part if isinstance(part, tuple) else (part,)
        return tuple(parts)

    return key


def _otherwise(otherwise: ByRequest | None) -> ByRequest:
    """A key function for those without a name: no name is ever one of its keys."""
    function = by_address() if otherwise is None else otherwise
    check_function(function, "otherwise")

    def key(request: Any) -> Any:
        value = function(request)
        if value is None:
            return None
        return ("anonymous", *(value if isinstance(value, tuple) else (value,)))

    return key


def _check_number(what: str, value: int, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ConfigurationError(
            f"{what} {shown(value)} is not allowed; allowed: {least} to {most}"
        )
