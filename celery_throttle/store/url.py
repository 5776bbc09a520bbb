"""The URL of the server that keeps the limits.

::

    redis://[user:password@]host:6379/<db>                      one server
    unix:///path/to/socket?db=<db>                              one server
    redis+cluster://host1:6379,host2:6379                       the node that has the keys
    redis+sentinel://host1:26379,host2:26379/<master>[/<db>]    the master that Sentinels name
    memory://                                                   no server: limits of one process

``rediss`` means TLS; ``valkey`` and ``valkeys`` mean ``redis`` and ``rediss``. Options of
redis-py's URLs may follow, such as ``?ssl_ca_certs=/path``. User and password are those of the
servers; the names of options for connections to the Sentinels begin with ``sentinel_``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import redis
from redis.connection import parse_url
from redis.exceptions import RedisError

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.store.connection import Address, make_connection
from celery_throttle.store.topology import Nodes, NoServers, Sentinels, Servers

#: The URL of limits in the memory of one process.
MEMORY_URL = "memory://"

_SINGLE = ("redis", "rediss", "valkey", "valkeys", "unix")
_SEVERAL = tuple(f"{one}+{kind}" for kind in ("sentinel", "cluster") for one in _SINGLE[:4])

#: Seconds for connecting and for each reply, at least and at most.
MIN_TIMEOUT, MAX_TIMEOUT = 0.01, 60

#: The prefix of options for connections to Sentinels.
_SENTINEL = "sentinel_"
_SENTINEL_PORT = 26379
_MAX_PORT = 65535

#: A host, maybe with a port and a database, without "://" or with an incomplete one.
_HOST = re.compile(r"\s*(?:rediss?(?::/*|/+))?([\w.\-]+(?::\d+)?(?:/\w*)?)\s*", re.ASCII)

_FALSE = ("false", "no", "0")


def safe_url(url: str) -> str:
    """Return the URL without user, password and options, for messages and logs."""
    # Not with a URL parser: an unescaped password makes it split the URL in the wrong place.
    scheme, separator, rest = url.partition("://")
    if not separator:  # a user and a password may precede the host all the same
        scheme, rest = "", url
    if "=" in rest.partition("?")[2].rpartition("@")[0]:  # an option, or an unescaped password
        return f"{scheme}{separator}..."
    return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"


def is_store_url(url: str) -> bool:
    """Whether a URL names a server that can keep limits."""
    return _scheme_of(url) in (*_SINGLE, *_SEVERAL)


def is_cluster_url(url: str) -> bool:
    """Whether a URL names nodes of a cluster."""
    scheme = _scheme_of(url)
    return scheme in _SEVERAL and scheme.endswith("+cluster")


def is_memory_url(url: Any) -> bool:
    """Whether a URL means the memory of this process."""
    return bool(url == MEMORY_URL)


def _scheme_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""


def read_url(url: Any, timeout: float) -> Servers:
    """Return the servers that a URL names; its options override the timeout (seconds).

    Raises:
        ConfigurationError: the URL cannot be used. The message contains no secrets.
    """
    if is_memory_url(url):
        return NoServers(
            f"the limits are in the memory of this process ({MEMORY_URL}); "
            "set the URL of a Redis or Valkey server"
        )
    if not isinstance(url, str) or not is_store_url(url):
        named = safe_url(url) if isinstance(url, str) else url
        allowed = ", ".join(f"{scheme}://" for scheme in (*_SINGLE, *_SEVERAL, "memory"))
        raise ConfigurationError(
            f"{shown(named)} is not a server that can keep limits: "
            f"the URL must start with one of {allowed}{_suggest(named)}"
        )
    try:
        return _read(url, timeout)
    # redis-py raises an AttributeError for text in place of an object.
    except (AttributeError, TypeError, ValueError, RedisError) as error:
        # The messages of redis-py quote the URL, which may contain an unescaped password. A
        # TypeError names an unknown option; that is safe if no part of a password is among them.
        safe = isinstance(error, TypeError) and "@" not in url.partition("?")[2]
        reason = "are user and password percent-encoded?" if "@" in url and not safe else error
        raise _unusable(url, reason) from None


def _unusable(url: str, reason: object) -> ConfigurationError:
    return ConfigurationError(f"the URL {safe_url(url)!r} cannot be used: {reason}")


def _suggest(named: Any) -> str:
    """Return a suggestion for text without a known scheme, which is mostly a host."""
    scheme, separator, rest = str(named).partition("://")
    host = _HOST.fullmatch(named) if isinstance(named, str) and not separator else None
    if host:
        return f"; write 'redis://{host[1]}'"
    known = scheme.strip().lower()
    return f"; write '{known}://{rest}'" if known in (*_SINGLE, *_SEVERAL) else ""


def _read(url: str, timeout: float) -> Servers:
    scheme, _, rest = url.partition("://")
    # redis-py has no Valkey schemes.
    scheme, _, kind = scheme.replace("valkey", "redis").partition("+")
    authority, _, query = rest.partition("?")
    user, at, authority = authority.rpartition("@")
    ends_early = "#" in user or ("/" in user and not rest.startswith("/"))
    if ends_early or "@" in query.partition("=")[0]:
        # redis-py would take the beginning of the password for a host and a port.
        raise ValueError
    hosts, _, path = authority.partition("/")
    if scheme != "unix":
        _check_ports(url, hosts)
    if not kind:
        if scheme != "unix":
            _check_database(url, path)
        return Nodes((_address(f"{scheme}://{rest}", timeout),))
    if kind == "cluster":
        if path not in ("", "0"):
            raise _unusable(url, "a cluster has only database 0")
        nodes = [f"{scheme}://{user}{at}{host}?{query}" for host in hosts.split(",")]
        return Nodes(tuple(_address(node, timeout) for node in nodes))
    name, _, db = path.partition("/")
    if not name:
        example = "redis+sentinel://host:26379/mymaster"
        raise _unusable(url, f"it must name the master, such as {example}")
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
        right = port.isdecimal() and 1 <= int(port) <= _MAX_PORT
        if port and not right and not _is_misread(url):
            wrong = f"its port {shown(port)} is not a number from 1 to {_MAX_PORT}"
            raise _unusable(url, f"{wrong}; write it as in 'redis://localhost:6379'")


def _is_misread(url: str) -> bool:
    """Whether the parsed host, port or database may be part of an unescaped password."""
    return "@" in url.partition("?")[2]


def _check_database(url: str, text: str) -> None:
    if text.strip("/") and not text.strip("/").isdecimal() and not _is_misread(url):
        raise _unusable(url, f"its database {shown(text)} is not a number")


def _sentinel(scheme: str, host: str, options: Mapping[str, str], timeout: float) -> Address:
    """Return the address of a Sentinel. Options for TLS and timeouts default to the servers'."""
    own = {n.removeprefix(_SENTINEL): v for n, v in options.items() if n.startswith(_SENTINEL)}
    secure = own.pop("ssl", str(scheme == "rediss")).lower() not in _FALSE
    shared = ("socket_", "ssl_") if secure else ("socket_",)
    own = {n: v for n, v in options.items() if n.startswith(shared)} | own
    url = f"{'rediss' if secure else 'redis'}://{host}?{urlencode(own)}"
    return _address(url, timeout, port=_SENTINEL_PORT)


def _address(url: str, timeout: float, **defaults: Any) -> Address:
    timeouts = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    given = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py has no annotation
    options = defaults | timeouts | given | {"protocol": 2}
    for name in timeouts:
        seconds = options[name]
        if not isinstance(seconds, (int, float)) or not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
            allowed = f"seconds from {MIN_TIMEOUT} to {MAX_TIMEOUT}"
            raise _unusable(url, f"{name} is {shown(seconds)}; allowed: {allowed}")
    connection = options.pop("connection_class", None)
    options.pop("max_connections", None)  # for a pool of redis-py, which is not used
    if "ssl_cert_reqs" in options:  # Celery allows CERT_REQUIRED, too
        options["ssl_cert_reqs"] = options["ssl_cert_reqs"].removeprefix("CERT_").lower()
    kinds = {redis.SSLConnection: "tls", redis.UnixDomainSocketConnection: "unix"}
    address = Address(kinds.get(connection, "tcp"), options)
    make_connection(address)  # raises errors in the options
    address.host.encode("idna")  # as a socket does, which raises an error that is no OSError
    return address
