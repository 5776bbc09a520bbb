"""Celery's broker as the server that keeps the limits: its settings, read as one of our URLs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import quote, urlencode

from celery_throttle.errors import ConfigurationError


def broker_url(conf: Any) -> str:
    """The URL of the broker; if that is Redis, as :mod:`celery_throttle.urls` reads it.

    Args:
        conf: ``app.conf``. Beside the URL, ``broker_use_ssl`` tells how TLS is used, and
            ``broker_transport_options`` which master the Sentinels are asked for.

    Raises:
        ConfigurationError: it does not tell which master.
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
    """User, password and database are those of the first URL: so Celery has it."""
    name = transport.get("master_name")
    if not name:
        raise ConfigurationError(
            "the broker is a master that Sentinels know, but not which: "
            'set app.conf.broker_transport_options, for example to {"master_name": "mymaster"}'
        )
    places = [url.partition("://")[2].partition("?")[0].rpartition("@") for url in urls]
    user, at, first = places[0]
    hosts = ",".join(place.partition("/")[0] for _, _, place in places)
    own = _options(transport.get("sentinel_kwargs"))
    if tls:
        own.setdefault("ssl", "no")  # only what is said of the Sentinels themselves counts for them
    query = urlencode(tls | {f"sentinel_{option}": value for option, value in own.items()})
    scheme = "rediss" if tls else "redis"
    path = f"{quote(str(name), safe='')}/{first.partition('/')[2]}"
    return f"{scheme}+sentinel://{user}{at}{hosts}/{path}?{query}"


def _options(given: Any) -> dict[str, str]:
    """Options as a URL has them; of ``ssl.CERT_REQUIRED`` its name."""
    if not isinstance(given, Mapping):
        return {}
    return {
        str(option): value.name if isinstance(value, Enum) else str(value)
        for option, value in given.items()
        if isinstance(value, (str, int, float))
    }
