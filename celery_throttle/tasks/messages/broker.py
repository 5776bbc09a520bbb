"""Celery's broker: the identity that names its queues, and its URL, if it keeps the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from kombu import Connection

from celery_throttle.errors import ConfigurationError

#: Transport options by which apps on one broker keep their queues apart.
_PREFIX_OPTIONS = ("global_keyprefix", "queue_name_prefix")


def broker_identity(connection: Connection) -> str:
    """Return text that tells the queues of a broker from queues of the same names on others.

    It consists of what keeps apps apart in Celery: the kind of the transport, the virtual host or
    the database, and the prefix of keys or queues. It has neither the host, as a broker may have
    several names, nor user and password. It has exactly one slash. The connection need not be
    established.
    """
    transport: Any = connection.get_transport_cls()
    kind = str(transport.driver_type)
    if kind == "N/A":  # some transports do not name their kind
        kind = str(connection.transport_cls)
    options = connection.transport_options or {}
    prefixes = (str(options[name]) for name in _PREFIX_OPTIONS if options.get(name))
    identity = f"{kind}/{quote(_virtual_host(connection, kind), safe='')}"
    return "+".join((identity, *(quote(prefix, safe="") for prefix in prefixes)))


def _virtual_host(connection: Connection, kind: str) -> str:
    host, given = str(connection.hostname or ""), str(connection.virtual_host or "")
    if "://" in host:  # a URL that kombu leaves to the transport to read
        parts = urlsplit(host)
        path = "" if parts.scheme == "socket" else parts.path
        given = parse_qs(parts.query).get("virtual_host", [path])[0]
    if kind != "redis":
        return given or "/"
    database = given.removeprefix("/") or "0"
    return str(int(database)) if database.isdecimal() else database


def broker_url(conf: Any) -> str:
    """Return the URL of the broker; that of a Redis as :mod:`celery_throttle.store.url` reads it.

    Beside the URL in ``app.conf``, ``broker_use_ssl`` has the options of TLS, and
    ``broker_transport_options`` the name of the master that the Sentinels watch.

    Raises:
        ConfigurationError: the broker is known to Sentinels, and no master is named.
    """
    given = conf.broker_read_url or ""
    listed = given if isinstance(given, (list, tuple)) else [given]
    urls = [url for text in listed for url in str(text).split(";")]
    scheme, _, rest = urls[0].partition("://")
    if scheme == "redis+socket":
        return f"unix://{rest.replace('virtual_host=', 'db=')}"
    tls = _options(conf.get("broker_use_ssl"))
    if scheme == "sentinel":
        return _sentinel_url(urls, tls, conf.get("broker_transport_options") or {})
    if tls and scheme in ("redis", "rediss"):
        return f"rediss://{rest}{'&' if '?' in rest else '?'}{urlencode(tls)}"
    return urls[0]


def _sentinel_url(urls: Sequence[str], tls: dict[str, str], transport: Mapping[str, Any]) -> str:
    """Return our URL of a master. As in Celery, user, password and database are the first URL's."""
    name = transport.get("master_name")
    if not name:
        raise ConfigurationError(
            "the broker is a master that Sentinels know, but its name is not set: "
            'set app.conf.broker_transport_options, for example to {"master_name": "mymaster"}'
        )
    parts = [url.partition("://")[2].partition("?")[0].rpartition("@") for url in urls]
    user, at, first = parts[0]
    hosts = ",".join(address.partition("/")[0] for _, _, address in parts)
    sentinel = _options(transport.get("sentinel_kwargs"))
    if tls:
        sentinel.setdefault("ssl", "no")  # the TLS of the master does not apply to the Sentinels
    query = urlencode(tls | {f"sentinel_{option}": value for option, value in sentinel.items()})
    scheme = "rediss" if tls else "redis"
    path = f"{quote(str(name), safe='')}/{first.partition('/')[2]}"
    return f"{scheme}+sentinel://{user}{at}{hosts}/{path}?{query}"


def _options(given: Any) -> dict[str, str]:
    """Return options as text for a URL; of an enum such as ``ssl.CERT_REQUIRED`` the name."""
    if not isinstance(given, Mapping):
        return {}
    return {
        str(option): value.name if isinstance(value, Enum) else str(value)
        for option, value in given.items()
        if isinstance(value, (str, int, float))
    }
