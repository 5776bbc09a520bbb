"""Settings: from arguments of :class:`~celery_throttle.app.Throttle` and from ``app.conf``.

An argument beats ``app.conf``; ``app.conf`` beats what is derived from other settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from celery_throttle import misspellings
from celery_throttle.errors import ConfigurationError, ThrottleError, shown
from celery_throttle.limits.limit import LONGEST_LEASE
from celery_throttle.limits.requirement import read_limits
from celery_throttle.messages.broker import broker_url
from celery_throttle.operations.changes import Limits
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.store.url import is_store_url, safe_url

#: What a task may name as its limits: one reference or several, such as ``"mail:{tenant_id}"``.
Spec = str | Sequence[str]

_LONGEST_TIMEOUT = 60
_LONGEST_GRACE = 3600

#: What the checks of the server at a worker's start lead to.
CHECKS = ("warn", "error", "off")

#: Where tasks wait: in lines beside the limits, or at the broker.
WAITING = ("lines", "broker")

#: Where tasks are sent: always to the broker, or to the end of the line if there is one.
PUBLISH = ("broker", "line")

_NAMES = tuple(
    f"throttle_{name}"
    for name in (
        *("limits", "routes", "url", "prefix", "lease"),
        *("timeout", "checks", "waiting", "publish", "replicas"),
        *("workers", "outage_grace"),
    )
)


class Settings:
    """Everything that can be set. Each setting is read when it is first used, and kept.

    Args:
        conf: ``app.conf``.
        given: the arguments by name; None means not given.

    Raises:
        ConfigurationError, LimitError: when a setting is read that is missing or wrong.
    """

    def __init__(self, conf: Any, given: Mapping[str, Any]) -> None:
        self._conf = conf
        self._given = given
        misspellings.warn(misspellings.in_settings(conf, _NAMES))

    def _read(self, name: str, default: Any) -> Any:
        value = self._given.get(name)
        if value is None:
            value = self._conf.get(f"throttle_{name}")
        return default if value is None else value

    def _text(self, name: str, default: str) -> str:
        value = self._read(name, default)
        if not isinstance(value, str):
            raise ConfigurationError(f"throttle_{name} is {shown(value)}: it must be text")
        return value

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        """The first is the default."""
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
    def url(self) -> str:
        """The server that keeps the limits (``throttle_url``); the broker if that is Redis."""
        return self._text("url", "") or self._broker_url()

    @property
    def has_server(self) -> bool:
        """Whether ``throttle_url`` is set, rightly or not, or the broker can keep limits."""
        try:
            return bool(self.url)
        except ConfigurationError:
            return self._read("url", None) is not None

    @property
    def written_limits(self) -> Mapping[str, Any]:
        """``throttle_limits`` as it was written."""
        return self._mapping("limits")

    @cached_property
    def limits(self) -> Mapping[str, Limits]:
        """Name to limit (``throttle_limits``)."""
        return read_limits(self.written_limits)

    @cached_property
    def routes(self) -> Mapping[str, Spec]:
        """Task name, or a pattern with ``*``, to limits (``throttle_routes``)."""
        return self._mapping("routes")

    @cached_property
    def prefix(self) -> str:
        """Of all names in Redis (``throttle_prefix``)."""
        return self._text("prefix", DEFAULT_PREFIX)

    @cached_property
    def lease(self) -> float:
        """Seconds after which a silent worker's claims go back (``throttle_lease``, default 30)."""
        return check_lease(self._read("lease", 30.0))

    @cached_property
    def timeout(self) -> float:
        """Seconds that the server has for each answer (``throttle_timeout``, default 1)."""
        return _seconds("timeout", self._read("timeout", 1.0), 0.01, _LONGEST_TIMEOUT)

    @cached_property
    def replicas(self) -> int:
        """Replicas that must have a task that waits (``throttle_replicas``, default 0)."""
        replicas = self._read("replicas", 0)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
            raise ConfigurationError(
                f"throttle_replicas is {shown(replicas)}: it must be a whole number, 0 or more"
            )
        return replicas

    @cached_property
    def workers(self) -> int | None:
        """Workers to assume before any number was heard (``throttle_workers``, default None)."""
        workers = self._read("workers", None)
        whole = isinstance(workers, int) and not isinstance(workers, bool)
        if workers is not None and not (whole and workers >= 1):
            raise ConfigurationError(
                f"throttle_workers is {shown(workers)}: it must be a whole number, 1 or more"
            )
        return None if workers is None else int(workers)

    @cached_property
    def outage_grace(self) -> float:
        """Seconds for which a worker that starts in an outage waits (``throttle_outage_grace``).

        Only if it does not know how many workers there are. Default 30.
        """
        return _seconds("outage_grace", self._read("outage_grace", 30.0), 0, _LONGEST_GRACE)

    @cached_property
    def checks(self) -> str:
        """What follows of a server that may lose tasks (``throttle_checks``, default "warn")."""
        return self._one_of("checks", CHECKS)

    @cached_property
    def waiting(self) -> str:
        """Where tasks wait (``throttle_waiting``, default "lines"), or "broker"."""
        return self._one_of("waiting", WAITING)

    @cached_property
    def publish(self) -> str:
        """Where tasks with limits are sent (``throttle_publish``, default "broker"), or "line"."""
        publish = self._one_of("publish", PUBLISH)
        if publish == "line" and self.waiting == "broker":
            raise ConfigurationError(
                "throttle_publish is 'line', but there are no lines: throttle_waiting is 'broker'"
            )
        return publish

    def check(self) -> None:
        """Read all there is, but the URL: an app without limits needs none.

        Raises:
            ConfigurationError, LimitError: one is wrong, or ``app.conf`` has one that there is not.
        """
        for error in self.mistakes():
            raise error

    def mistakes(self) -> Iterator[ThrottleError]:
        """What is wrong with them, see :meth:`check`; of each the first mistake."""
        for one in misspellings.in_settings(self._conf, _NAMES):
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
    """A lease that is seconds, neither too short nor too long.

    Raises:
        ConfigurationError: it is not.
    """
    return _seconds("lease", lease, 1, LONGEST_LEASE)


def _seconds(name: str, value: Any, least: float, most: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        raise ConfigurationError(
            f"throttle_{name} is {shown(value)}: it must be seconds, from {least} to {most}"
        )
    return float(value)
