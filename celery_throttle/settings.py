"""Settings: from arguments of :class:`~celery_throttle.app.Throttle` and from ``app.conf``.

An argument beats ``app.conf``; ``app.conf`` beats what is derived from other settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.keys import DEFAULT_PREFIX
from celery_throttle.limiter import read_limits
from celery_throttle.limits import Limit
from celery_throttle.store import is_store_url, safe_url

_LONGEST_LEASE = 3600

#: What a task may name as its limits: one reference or several, such as ``"mail:{tenant_id}"``.
Spec = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set.

    Attributes:
        url: the server that keeps the limits (``throttle_url``); the broker if that is Redis.
        limits: name to limit (``throttle_limits``).
        routes: task name, or a pattern with ``*``, to limits (``throttle_routes``), for tasks that
            do not say themselves.
        prefix: of all names in Redis (``throttle_prefix``).
        lease: seconds after which a silent worker's claims go back to their lines
            (``throttle_lease``, default 30).
    """

    url: str
    limits: Mapping[str, Limit]
    routes: Mapping[str, Spec]
    prefix: str
    lease: float

    @classmethod
    def read(cls, conf: Any, given: Mapping[str, Any]) -> Settings:
        """Settings out of ``app.conf`` and the arguments given (None: not given).

        Raises:
            ConfigurationError: a setting is missing or wrong.
            LimitError: a limit is wrong.
        """

        def setting(name: str, default: Any) -> Any:
            value = given.get(name)
            if value is None:
                value = conf.get(f"throttle_{name}")
            return default if value is None else value

        lease = setting("lease", 30.0)
        if (
            isinstance(lease, bool)
            or not isinstance(lease, (int, float))
            or not 1 <= lease <= _LONGEST_LEASE
        ):
            raise ConfigurationError(
                f"throttle_lease is {shown(lease)}: it must be seconds, from 1 to {_LONGEST_LEASE}"
            )
        return cls(
            url=setting("url", None) or _broker_url(conf),
            limits=read_limits(_mapping("throttle_limits", setting("limits", {}))),
            routes=_mapping("throttle_routes", setting("routes", {})),
            prefix=setting("prefix", DEFAULT_PREFIX),
            lease=float(lease),
        )


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name} is {shown(value)}: it must be a dict")
    return value


def _broker_url(conf: Any) -> str:
    broker = conf.get("broker_read_url") or conf.get("broker_url") or ""
    url = str(broker[0] if isinstance(broker, (list, tuple)) else broker).split(";")[0]
    if not is_store_url(url):
        raise ConfigurationError(
            f"throttle_url is not set, and the broker {safe_url(url)!r} is not Redis: "
            'set app.conf.throttle_url, for example to "redis://localhost:6379/1"'
        )
    return url
