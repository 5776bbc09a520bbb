"""Settings, from arguments of :class:`~celery_throttle.app.Throttle` and from ``app.conf``.

An argument overrides ``app.conf``, which overrides the environment variable ``THROTTLE_URL`` and
values derived from other settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from celery_throttle.errors import ConfigurationError, ThrottleError, shown
from celery_throttle.limiter.parts import check_urls
from celery_throttle.limits.key import HasRef
from celery_throttle.limits.limit import MAX_LEASE_SECONDS, Limits
from celery_throttle.limits.requirement import CallFunction, LimitByKey, parse_definitions
from celery_throttle.limits.rules.rules import Route
from celery_throttle.limits.shards import ShardMap, parse_shards
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.store.url import (
    MAX_TIMEOUT,
    MIN_TIMEOUT,
    is_memory_url,
    is_store_url,
    safe_url,
)
from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.messages.broker import broker_url

T = TypeVar("T")

#: A limit of a task: a key template such as ``"mail:{tenant_id}"``, a handle, or a function of the
#: task's arguments that returns what a task may have, or None.
OneSpec = str | HasRef | CallFunction

#: The limits of a task: one or several.
Spec = OneSpec | Sequence[OneSpec]

#: A route: the limits of a task, or a dict of ``limits`` and ``cost``.
RouteSpec = Spec | Mapping[str, Any]

#: Checks the value of a setting with this name, and returns it.
Check = Callable[[str, Any], Any]

#: Values of ``throttle_checks``: what follows if the server fails a check at a worker's start.
CHECKS = ("warn", "error", "off")

#: Values of ``throttle_waiting``: where tasks wait, in lines in Redis or at the broker.
WAITING = ("line", "broker")

#: Values of ``throttle_publish``: where tasks with limits are sent, to the broker or to their line.
PUBLISH = ("broker", "line")


def _wrong(name: str, value: Any, what_is_right: str) -> ConfigurationError:
    return ConfigurationError(f"throttle_{name} is {shown(value)}{what_is_right}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, ": it must be text")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "; allowed: True, False")
    return value


def _one_of(*allowed: str) -> Check:
    def check(name: str, value: Any) -> str:
        if _text(name, value) not in allowed:
            raise _wrong(name, value, f"; allowed: {', '.join(map(repr, allowed))}")
        return str(value)

    return check


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(name, value, ": it must be a dict")
    return value


def _routes(name: str, value: Any) -> Mapping[str, Route]:
    written = _mapping(name, value)
    for task in written:
        if not isinstance(task, str):
            raise ConfigurationError(
                f"throttle_{name} has the key {shown(task)}; allowed: the name of a task, or a "
                "pattern such as 'shop.*'"
            )
    return {task: Route.of(route, f"throttle_{name}[{task!r}]") for task, route in written.items()}


def _path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise _wrong(name, value, ": it must be the path of a file")
    return os.fspath(value)


def _whole(least: int) -> Check:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _wrong(name, value, f": it must be a whole number, {least} or more")
        return value

    return check


def _seconds(least: float, most: float) -> Check:
    def check(name: str, value: Any) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value <= most:
            raise _wrong(name, value, f": it must be seconds, from {least} to {most}")
        return float(value)

    return check


check_lease = _seconds(1, MAX_LEASE_SECONDS)


class _Setting(Generic[T]):
    """A setting: its default, and the check of any other value. Read at first use, and cached."""

    def __init__(self, default: T, check: Check) -> None:
        self._default = default
        self._check = check

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, settings: Settings | None, _: type) -> T:
        if settings is None:
            return self  # type: ignore[return-value]  # as properties do
        value = settings.given(self._name)
        read: T = self._default if value is None else self._check(self._name, value)
        vars(settings)[self._name] = read  # which takes precedence over this object
        return read


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
        option_warnings.warn(one.text for one in self.find_misspellings())

    def given(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting as written, or else the default."""
        value = self._arguments.get(name)
        if value is None:
            value = self._conf.get(f"throttle_{name}")
        return default if value is None else value

    #: Whether limits are enforced. If not, every task and request is allowed, and sent as by Celery
    #: without limits; no server is needed.
    enabled = _Setting[bool](True, _boolean)  # noqa: FBT003  # the default

    @property
    def written_limits(self) -> Mapping[str, Any]:
        """``throttle_limits`` as written."""
        return _mapping("limits", self.given("limits", {}))

    @cached_property
    def limits(self) -> Mapping[str, Limits]:
        """Name to limits."""
        return parse_definitions(self.written_limits)

    @property
    def limits_by_key(self) -> Mapping[str, LimitByKey]:
        """Name to the limit, of those whose keys get their definitions from a function."""
        limits = self.written_limits.items()
        return {name: each for name, each in limits if isinstance(each, LimitByKey)}

    #: Task name, or a pattern with ``*``, to the limits and the cost of the task.
    routes = _Setting[Mapping[str, Route]]({}, _routes)

    @cached_property
    def url(self) -> str:
        """The URL of the server.

        Default: the environment variable ``THROTTLE_URL``, or else the broker's, if that is Redis.
        """
        given = _text("url", self.given("url", "")) or os.environ.get("THROTTLE_URL")
        url = given or broker_url(self._conf)
        if not given and not is_store_url(url):
            raise ConfigurationError(
                f"throttle_url is not set, and the broker {safe_url(url)!r} is not Redis: "
                'set app.conf.throttle_url, for example to "redis://localhost:6379/1"'
            )
        return url

    @cached_property
    def shards(self) -> ShardMap:
        """The shard of each limit."""
        shard_map = parse_shards(self.given("shards", {}))
        if shard_map.entries:
            check_urls(shard_map, self.url)
        return shard_map

    @property
    def has_server(self) -> bool:
        """Whether limits are enabled, and have a URL, valid or not, or a broker that keeps them."""
        if not self.enabled:
            return False
        try:
            return bool(self.url)
        except ConfigurationError:
            return self.given("url") is not None

    @property
    def has_lines(self) -> bool:
        """Whether tasks may wait in lines: the limits are on a server, not in memory."""
        return self.has_server and not is_memory_url(self.url)

    #: The prefix of all keys in Redis.
    prefix = _Setting[str](DEFAULT_PREFIX, _text)

    #: Seconds until a lost worker's claims are requeued.
    lease = _Setting[float](30.0, check_lease)

    #: Seconds for connecting and for each reply.
    timeout = _Setting[float](1.0, _seconds(MIN_TIMEOUT, MAX_TIMEOUT))

    #: Seconds for which a call of a run that has sent requests waits in its process.
    max_wait_in_place = _Setting[float](60.0, _seconds(0, 86_400))

    #: What follows if the server may lose tasks.
    checks = _Setting[str](CHECKS[0], _one_of(*CHECKS))

    #: Where tasks wait.
    waiting = _Setting[str](WAITING[0], _one_of(*WAITING))

    @cached_property
    def publish(self) -> str:
        """Where tasks are sent."""
        publish: str = _one_of(*PUBLISH)("publish", self.given("publish", PUBLISH[0]))
        if publish == "line" and self.waiting == "broker":
            raise ConfigurationError(
                "throttle_publish is 'line', but there are no lines: throttle_waiting is 'broker'"
            )
        return publish

    #: Replicas that must confirm a parked task.
    replicas = _Setting[int](0, _whole(0))

    #: Workers to assume until their number is known.
    outage_workers = _Setting[int | None](None, _whole(1))

    #: Seconds for which a worker that starts in an outage starts no task with limits, while it does
    #: not know the number of workers.
    outage_grace = _Setting[float](30.0, _seconds(0, 3600))

    #: Path of the rules file.
    rules = _Setting[str | None](None, _path)

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


#: The names of all settings.
_NAMES = tuple(
    f"throttle_{name}"
    for name, value in vars(Settings).items()
    if isinstance(value, (_Setting, cached_property))
)
