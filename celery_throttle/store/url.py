"""The URL of the server that keeps the limits.

::

    redis://[user:password@]host:6379/<db>                      one server
    unix:///path/to/socket?db=<db>                              one server
    redis+cluster://host1:6379,host2:6379                       the node that has the keys
    redis+sentinel://host1:26379,host2:26379/<master>[/<db>]    what the Sentinels call the master

``rediss`` stands for TLS, ``valkey`` and ``valkeys`` for ``redis`` and ``rediss``. Options of
redis-py's URLs may follow, such as ``?ssl_ca_certs=/path``. User and password are those of the
servers; an option for the connections to the Sentinels begins with ``sentinel_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import redis
from redis.connection import parse_url
from redis.exceptions import RedisError

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.store.address import Address, make_connection
from celery_throttle.store.topology import Nodes, Sentinels, Servers

_SINGLE = ("redis", "rediss", "valkey", "valkeys", "unix")
_SEVERAL = tuple(f"{one}+{kind}" for kind in ("sentinel", "cluster") for one in _SINGLE[:4])

#: Before the options for connections to Sentinels.
_SENTINEL = "sentinel_"
_SENTINEL_PORT = 26379
_LAST_PORT = 65535

#: A host, or more of a place, without "://" before it, or with a part of that.
_PLACE = re.compile(r"\s*(?:rediss?(?::/*|/+))?([\w.\-]+(?::\d+)?(?:/\w*)?)\s*", re.ASCII)

_NO = ("false", "no", "0")


def safe_url(url: str) -> str:
    """The URL without what is secret in it, for messages and logs."""
    # By hand: a password that was not escaped makes every parser cut the URL in the wrong place.
    scheme, separator, rest = url.partition("://")
    if not separator:  # a user and a password may be in front all the same
        scheme, rest = "", url
    return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"


def is_store_url(url: str) -> bool:
    """Whether a URL names a server that can keep limits."""
    return _is_one_of((*_SINGLE, *_SEVERAL), url)


def is_single_url(url: str) -> bool:
    """Whether a URL names one server, and nothing by which to find it."""
    return _is_one_of(_SINGLE, url)


def is_cluster_url(url: str) -> bool:
    """Whether a URL names nodes of a cluster."""
    return _is_one_of([scheme for scheme in _SEVERAL if scheme.endswith("+cluster")], url)


def _is_one_of(schemes: Iterable[str], url: str) -> bool:
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme in schemes


def read_url(url: Any, timeout: float) -> Servers:
    """The servers that a URL names.

    Args:
        url: see the module.
        timeout: seconds for connecting and for each reply, if the URL does not say.

    Raises:
        ConfigurationError: it cannot be used. The message has no secrets.
    """
    if not isinstance(url, str) or not is_store_url(url):
        named = safe_url(url) if isinstance(url, str) else url
        allowed = ", ".join(f"{scheme}://" for scheme in (*_SINGLE, *_SEVERAL))
        raise ConfigurationError(
            f"{shown(named)} is no server that can keep limits: "
            f"the URL must start with one of {allowed}{_suggest(named)}"
        )
    try:
        return _read(url, timeout)
    except (TypeError, ValueError, RedisError) as error:
        # What redis-py says quotes the URL, also a password that was not escaped; or it names an
        # option that it does not know, if what it took for options is none of that password.
        unknown = isinstance(error, TypeError) and "@" not in url.partition("?")[2]
        hidden = "@" in url and not unknown
        why = "are user and password percent-encoded?" if hidden else error
        raise ConfigurationError(f"the URL {safe_url(url)!r} cannot be used: {why}") from None


def _suggest(named: Any) -> str:
    """What may have been meant by text without one of our schemes: a host, mostly."""
    scheme, separator, rest = str(named).partition("://")
    place = _PLACE.fullmatch(named) if isinstance(named, str) and not separator else None
    if place:
        return f"; write 'redis://{place[1]}'"
    meant = scheme.strip().lower()
    return f"; write '{meant}://{rest}'" if meant in (*_SINGLE, *_SEVERAL) else ""


def _read(url: str, timeout: float) -> Servers:
    scheme, _, rest = url.partition("://")
    # As redis-py writes it.
    scheme, _, kind = scheme.replace("valkey", "redis").partition("+")
    place, _, query = rest.partition("?")
    user, at, place = place.rpartition("@")
    hosts, _, path = place.partition("/")
    if scheme != "unix":
        _check_ports(url, hosts)
    if not kind:
        if scheme != "unix":
            _check_database(url, path)
        return Nodes((_address(f"{scheme}://{rest}", timeout),))
    if kind == "cluster":
        if path not in ("", "0"):
            raise ConfigurationError(
                f"the URL {safe_url(url)!r} cannot be used: a cluster has only database 0"
            )
        nodes = [f"{scheme}://{user}{at}{host}?{query}" for host in hosts.split(",")]
        return Nodes(tuple(_address(node, timeout) for node in nodes))
    name, _, db = path.partition("/")
    if not name:
        raise ConfigurationError(
            f"the URL {safe_url(url)!r} cannot be used: it must name the master, "
            "such as redis+sentinel://host:26379/mymaster"
        )
    _check_database(url, db)
    options = dict(parse_qsl(query, keep_blank_values=True))
    master = {name: value for name, value in options.items() if not name.startswith(_SENTINEL)}
    sentinels = [_sentinel(scheme, host, options, timeout) for host in hosts.split(",")]
    return Sentinels(
        tuple(sentinels),
        _address(f"{scheme}://{user}{at}/{db}?{urlencode(master)}", timeout),
        unquote(name),
    )


def _check_ports(url: str, hosts: str) -> None:
    for host in hosts.split(","):
        port = host.rpartition("]")[2].partition(":")[2]  # [::1]:6379
        right = port.isdecimal() and 1 <= int(port) <= _LAST_PORT
        if port and not right and not _is_misread(url):
            raise ConfigurationError(
                f"the URL {safe_url(url)!r} cannot be used: its port {shown(port)} is no number "
                f"from 1 to {_LAST_PORT}; write it as in 'redis://localhost:6379'"
            )


def _is_misread(url: str) -> bool:
    """Whether what was taken for the host, the port or the database may be part of a password."""
    return "@" in url.partition("?")[2]


def _check_database(url: str, text: str) -> None:
    if text.strip("/") and not text.strip("/").isdecimal() and not _is_misread(url):
        raise ConfigurationError(
            f"the URL {safe_url(url)!r} cannot be used: its database {shown(text)} is no number"
        )


def _sentinel(scheme: str, host: str, options: Mapping[str, str], timeout: float) -> Address:
    """What is said of TLS and time-outs is for the Sentinels, too, if nothing else is said."""
    own = {n.removeprefix(_SENTINEL): v for n, v in options.items() if n.startswith(_SENTINEL)}
    secure = own.pop("ssl", str(scheme == "rediss")).lower() not in _NO
    shared = ("socket_", "ssl_") if secure else ("socket_",)
    own = {n: v for n, v in options.items() if n.startswith(shared)} | own
    url = f"{'rediss' if secure else 'redis'}://{host}?{urlencode(own)}"
    return _address(url, timeout, port=_SENTINEL_PORT)


def _address(url: str, timeout: float, **defaults: Any) -> Address:
    timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    given = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py says nothing of it
    options = defaults | timeouts | given | {"protocol": 2}
    connection = options.pop("connection_class", None)
    options.pop("max_connections", None)  # a pool's, and there is none
    if "ssl_cert_reqs" in options:  # Celery allows CERT_REQUIRED, too
        options["ssl_cert_reqs"] = options["ssl_cert_reqs"].removeprefix("CERT_").lower()
    kinds = {redis.SSLConnection: "tls", redis.UnixDomainSocketConnection: "unix"}
    address = Address(kinds.get(connection, "tcp"), options)
    make_connection(address)  # what is wrong with the options shows here
    return address
