"""Settings, from arguments of :class:`~celery_throttle.app.Throttle` and from ``app.conf``.

An argument overrides ``app.conf``, which overrides the environment variable ``THROTTLE_URL`` and
values derived from other settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from celery_throttle.errors import ConfigurationError, ThrottleError, shown
from celery_throttle.limits.limit import MAX_LEASE_SECONDS, Limits
from celery_throttle.limits.requirement import parse_definitions
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.store.url import is_store_url, safe_url
from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.messages.broker import broker_url

#: The limits of a task: one key template or several, such as ``"mail:{tenant_id}"``.
Spec = str | Sequence[str]

_MAX_TIMEOUT_SECONDS = 60
_MAX_GRACE_SECONDS = 3600

#: Values of ``throttle_checks``: what follows if the server fails a check at a worker's start.
CHECKS = ("warn", "error", "off")

#: Values of ``throttle_waiting``: where tasks wait, in lines in Redis or at the broker.
WAITING = ("line", "broker")

#: Values of ``throttle_publish``: where tasks with limits are sent, to the broker or to their line.
PUBLISH = ("broker", "line")

_NAMES = tuple(
    f"throttle_{name}"
    for name in (
        *("enabled", "limits", "routes", "url", "prefix", "lease"),
        *("timeout", "checks", "waiting", "publish", "replicas"),
        *("outage_workers", "outage_grace", "rules"),
    )
)


class Settings:
    """All settings. Each is read at its first use, and cached.

    Args:
        conf: ``app.conf``.
        arguments: the arguments of ``Throttle`` by name; None means not given.

    Raises:
        ConfigurationError, LimitError: at its first use, a setting is missing or wrong.
    """

    def __init__(self, conf: Any, arguments: Mapping[str, Any]) -> None:
        self._conf = conf
        self._arguments = arguments
        option_warnings.warn(self.find_misspellings())

    def _read(self, name: str, default: Any) -> Any:
        value = self._arguments.get(name)
        if value is None:
            value = self._conf.get(f"throttle_{name}")
        return default if value is None else value

    def _text(self, name: str, default: str) -> str:
        value = self._read(name, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"throttle_{name} is {shown(value)}: it must be text")
        return value

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a setting that must be one of ``allowed``; the first one is the default."""
        value = self._text(name, allowed[0])
        if value not in allowed:
            raise ConfigurationError(
                f"throttle_{name} is {shown(value)}; allowed: {', '.join(map(repr, allowed))}"
            )
        return value

    def _mapping(self, name: str) -> Mapping[str, Any]:
        value = self._read(name, {})
        if not isinstance(value, Mapping):
            raise ConfigurationError(f"throttle_{name} is {shown(value)}: it must be a dict")
        return value

    @cached_property
    def enabled(self) -> bool:
        """Whether limits are enforced (``throttle_enabled``, default True); False needs no server.

        False: every task and request is allowed, and sent as by Celery without limits.
        """
        enabled = self._read("enabled", True)  # noqa: FBT003  # the default
        if not isinstance(enabled, bool):
            raise ConfigurationError(f"throttle_enabled is {shown(enabled)}; allowed: True, False")
        return enabled

    @cached_property
    def url(self) -> str:
        """The URL of the server (``throttle_url``).

        Default: the environment variable ``THROTTLE_URL``, or else the broker's, if that is Redis.
        """
        return self._text("url", "") or os.environ.get("THROTTLE_URL") or self._broker_url()

    @property
    def has_server(self) -> bool:
        """Whether limits are enabled, and have a URL, valid or not, or a broker that keeps them."""
        if not self.enabled:
            return False
        try:
            return bool(self.url)
        except ConfigurationError:
            return self._read("url", None) is not None

    @property
    def written_limits(self) -> Mapping[str, Any]:
        """``throttle_limits`` as written."""
        return self._mapping("limits")

    @cached_property
    def limits(self) -> Mapping[str, Limits]:
        """Name to limits (``throttle_limits``)."""
        return parse_definitions(self.written_limits)

    @cached_property
    def routes(self) -> Mapping[str, Spec]:
        """Task name, or a pattern with ``*``, to the limits of the task (``throttle_routes``)."""
        return self._mapping("routes")

    @cached_property
    def rules(self) -> str | None:
        """Path of the rules file (``throttle_rules``, default None)."""
        path = self._read("rules", None)
        if path is None:
            return None
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ConfigurationError(
                f"throttle_rules is {shown(path)}: it must be the path of a file"
            )
        return os.fspath(path)

    @cached_property
    def prefix(self) -> str:
        """The prefix of all keys in Redis (``throttle_prefix``, default "{throttle}")."""
        return self._text("prefix", DEFAULT_PREFIX)

    @cached_property
    def lease(self) -> float:
        """Seconds until a lost worker's claims are requeued (``throttle_lease``, default 30)."""
        return check_lease(self._read("lease", 30.0))

    @cached_property
    def timeout(self) -> float:
        """Seconds for connecting and for each reply (``throttle_timeout``, default 1)."""
        return _seconds("timeout", self._read("timeout", 1.0), 0.01, _MAX_TIMEOUT_SECONDS)

    @cached_property
    def replicas(self) -> int:
        """Replicas that must confirm a parked task (``throttle_replicas``, default 0)."""
        return _whole("replicas", self._read("replicas", 0), 0)

    @cached_property
    def outage_workers(self) -> int | None:
        """Workers to assume until their number is known (``throttle_outage_workers``)."""
        workers = self._read("outage_workers", None)
        return None if workers is None else _whole("outage_workers", workers, 1)

    @cached_property
    def outage_grace(self) -> float:
        """Seconds for which a worker that starts in an outage starts no task with limits.

        Only while it does not know the number of workers (``throttle_outage_grace``, default 30).
        """
        return _seconds("outage_grace", self._read("outage_grace", 30.0), 0, _MAX_GRACE_SECONDS)

    @cached_property
    def checks(self) -> str:
        """What follows if the server may lose tasks (``throttle_checks``, default "warn")."""
        return self._one_of("checks", CHECKS)

    @cached_property
    def waiting(self) -> str:
        """Where tasks wait: "line" or "broker" (``throttle_waiting``, default "line")."""
        return self._one_of("waiting", WAITING)

    @cached_property
    def publish(self) -> str:
        """Where tasks are sent: "broker" or "line" (``throttle_publish``, default "broker")."""
        publish = self._one_of("publish", PUBLISH)
        if publish == "line" and self.waiting == "broker":
            raise ConfigurationError(
                "throttle_publish is 'line', but there are no lines: throttle_waiting is 'broker'"
            )
        return publish

    def find_misspellings(self) -> Iterator[option_warnings.Misspelling]:
        """Yield the misspelt settings."""
        return option_warnings.find_in_settings(self._conf, _NAMES)

    def mistakes(self) -> Iterator[ThrottleError]:
        """Yield an error for each setting that is wrong, or does not exist.

        Except for the URL, which an app without limits does not need.
        """
        for one in self.find_misspellings():
            if one.certain:
                yield ConfigurationError(one.text)
        for name in _NAMES:
            if name != "throttle_url":
                try:
                    getattr(self, name.removeprefix("throttle_"))
                except ThrottleError as error:
                    yield error

    def _broker_url(self) -> str:
        url = broker_url(self._conf)
        if not is_store_url(url):
            raise ConfigurationError(
                f"throttle_url is not set, and the broker {safe_url(url)!r} is not Redis: "
                'set app.conf.throttle_url, for example to "redis://localhost:6379/1"'
            )
        return url


def check_lease(lease: Any) -> float:
    """Return a lease as a float.

    Raises:
        ConfigurationError: it is not a number of seconds from 1 to 3600.
    """
    return _seconds("lease", lease, 1, MAX_LEASE_SECONDS)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(
            f"throttle_{name} is {shown(value)}: it must be a whole number, {least} or more"
        )
    return value


def _seconds(name: str, value: Any, least: float, most: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise ConfigurationError(
            f"throttle_{name} is {shown(value)}: it must be seconds, from {least} to {most}"
        )
    return float(value)
