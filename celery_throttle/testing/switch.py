"""Switches where limits are decided, for all limiters of this process, for the time of a test."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import redis

from celery_throttle.errors import UnknownLimitError
from celery_throttle.limiter.backend import Backend, disabled_backend, make_backend
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import LimitsLike, parse_definitions
from celery_throttle.store.keys import DEFAULT_PREFIX
from celery_throttle.tasks.app_limits import active_throttles
from celery_throttle.tasks.settings import Settings

#: Seconds for connecting to the private server, and for each reply.
_TIMEOUT_SECONDS = 10.0

#: The prefixes of limiters that tests have used. The private server outlasts a limiter.
_prefixes = {DEFAULT_PREFIX}


class Switch:
    """Replaces the backend of each limiter, whether it exists already or is made later.

    Args:
        url: the server that decides, or ``"memory://"``; None: all requests are allowed.
        clock: a :class:`~celery_throttle.operations.plan.Clock` for each limiter; None: each keeps
            its own.
    """

    def __init__(self, url: str | None, clock: Any = None) -> None:
        self._url = url
        self.clock = clock
        self._lock = threading.Lock()
        self._limits: dict[str, Any] = {}
        self._backends: WeakKeyDictionary[LimiterCore, Backend] = WeakKeyDictionary()

    @contextmanager
    def on(self) -> Iterator[Switch]:
        """Decide limits there for the time of a ``with``."""
        with pytest.MonkeyPatch.context() as patch:
            # A property takes precedence over what the limiter has cached under the same name.
            for name in Backend._fields:
                patch.setattr(LimiterCore, name, _property(name, self._read_backend(name)))
            if self.clock is not None:
                clock = _property("clock", lambda _: self.clock)
                patch.setattr(LimiterCore, "clock", clock, raising=False)
            patch.setattr(
                Settings, "enabled", _property("enabled", lambda _: self._url is not None)
            )
            if self._url is not None:
                patch.setattr(Settings, "url", _property("url", lambda _: self._url))
            try:
                yield self
            finally:
                for backend in self._backends.values():
                    backend.store.close()

    def replace_limits(self, limits: Mapping[str, LimitsLike]) -> None:
        """Replace the limits of these names, for all limiters.

        Raises:
            UnknownLimitError: a name resembles that of a limit, and there is none of this name.
            LimitError: a definition is wrong.
        """
        parsed = parse_definitions(limits)
        self._check_names(parsed)
        self._limits.update(parsed)
        for limiter, backend in list(self._backends.items()):
            for name, written in parsed.items():
                limiter.run_plan(backend.plans.define(LimitRef(name, None), written))

    def _check_names(self, names: Iterable[str]) -> None:
        known = {name for one in (*active_throttles(), *self._backends) for name in one.limits}
        for name in known and {*names} - known:
            similar = get_close_matches(name, known, 1)
            if similar:  # any other may be of a limiter that the test makes later
                raise UnknownLimitError(
                    f"throttle_limits: there is no limit {name!r}; write {similar[0]!r}"
                )

    def _read_backend(self, name: str) -> Callable[[LimiterCore], Any]:
        return lambda limiter: getattr(self._backend_of(limiter), name)

    def _backend_of(self, limiter: LimiterCore) -> Backend:
        with self._lock:  # a worker in a thread may be the first, or the test
            backend = self._backends.get(limiter)
            if backend is None:
                limits = {**limiter.code_limits, **limiter.limits, **self._limits}
                backend = self._backends[limiter] = self._make(limiter, limits)
            return backend

    def _make(self, limiter: LimiterCore, limits: Mapping[str, Any]) -> Backend:
        if self._url is None:
            return disabled_backend(limits, limiter.keys, "throttle_off")
        _prefixes.add(limiter.keys.prefix)
        return make_backend(
            self._url, limits, limiter.keys, timeout=_TIMEOUT_SECONDS, clock=limiter.clock
        )


def _property(name: str, read: Callable[[Any], Any]) -> property:
    """Return a property that objects may still set, for the time after the test."""

    def store(target: Any, value: Any) -> None:
        vars(target)[name] = value

    return property(read, store)


def delete_limits(url: str) -> None:
    """Delete the keys of all limits and lines; others, such as a broker's, stay."""
    with redis.Redis.from_url(url) as client:
        for prefix in _prefixes.union(throttle.settings.prefix for throttle in active_throttles()):
            escaped = re.sub(r"[*?\[\]\\^-]", r"\\\g<0>", prefix)
            names = list(client.scan_iter(f"{escaped}:*", count=1000))
            if names:
                client.delete(*names)
