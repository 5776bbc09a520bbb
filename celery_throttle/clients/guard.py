"""Guard: the limits of one client's calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property
from math import inf
from typing import Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter.core import LimiterCore
from celery_throttle.limiter.handles import LimitHandles, check_handles
from celery_throttle.limits.duration import check_duration
from celery_throttle.limits.grammar import ADAPTIVE
from celery_throttle.limits.key import LimitRef, encode_key
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.requirement import CallFunction, Costs, Requirement, has_slots

logger = logging.getLogger(__name__)

#: Units, a mapping of units by the name of the limit, or a function that returns either.
CallCost = Costs | CallFunction

#: Seconds by which a pause must outlast the previous one to be logged.
_LOGGED_EXTENSION_SECONDS = 0.5


class Guard:
    """The limits of one client's calls.

    ``key`` and ``cost`` take the request, or the arguments of the call; ``usage`` takes the
    response.

    Args:
        limit: A handle such as ``throttle["stripe"]``, or a list of handles of one limiter.
        key: A function that returns the key of each limit without a key. If it returns None, the
            limit itself applies.
        cost: Units, or a dict of units by the name of the limit, or a function that returns either;
            default 1.
        max_wait: The most seconds that a call waits for its limits; default 0.
        usage: A function of the response that returns the actual cost, in the forms of ``cost``,
            which is then an estimate.
        retry_refused: How many times to repeat a call that the API refuses; default 0.

    Raises:
        LimitError: An argument is invalid.
    """

    def __init__(
        self,
        limit: LimitHandles,
        *,
        key: CallFunction | None = None,
        cost: CallCost | None = None,
        max_wait: float = 0.0,
        usage: Callable[[Any], Any] | None = None,
        retry_refused: int = 0,
    ) -> None:
        self._limits = check_handles(limit)
        for name, function in (("key", key), ("usage", usage)):
            if function is not None and not callable(function):
                raise LimitValueError(f"{name} must be callable, not {shown(function)}")
        self.limiter: LimiterCore = self._limits[0].limiter
        self._key = key
        self._cost: Any = 1 if cost is None else cost
        self.max_wait = check_duration(max_wait, "max_wait")
        self.usage = usage
        if (
            not isinstance(retry_refused, int)
            or isinstance(retry_refused, bool)
            or retry_refused < 0
        ):
            raise LimitValueError(
                f"retry_refused must be a whole number, 0 or more, not {shown(retry_refused)}"
            )
        self.retry_refused = retry_refused
        self._paused_until = 0.0
        self._fixed: Requirement | None = None
        if key is None and not callable(self._cost):
            self._fixed = self.requirement()

    def requirement(self, *args: Any, **kwargs: Any) -> Requirement:
        """Return the requirement of a call; the arguments are passed to ``key`` and ``cost``."""
        if self._fixed is not None:
            return self._fixed
        refs = [limit.ref for limit in self._limits]
        key = None if self._key is None else self._key(*args, **kwargs)
        if key is not None:
            refs = [
                ref if ref.key is not None else LimitRef(ref.name, encode_key(key)) for ref in refs
            ]
        cost = self._cost(*args, **kwargs) if callable(self._cost) else self._cost
        return self.limiter.require(refs, cost)

    def learning(self, requirement: Requirement) -> Requirement | None:
        """Return the part of a requirement whose limits learn from responses."""
        return requirement

    def names(self) -> list[str]:
        """Return the names of the limits."""
        return [limit.ref.name for limit in self._limits]

    # The definitions in the code are read at the first call, as the settings of an app are.

    @cached_property
    def _definitions(self) -> list[Limit]:
        defined = self.limiter.limits
        return [limit for name in self.names() for limit in defined.get(name, ())]

    @cached_property
    def takes_slots(self) -> bool:
        """Whether one of the limits has slots."""
        return any(map(has_slots, self._definitions))

    @cached_property
    def is_adaptive(self) -> bool:
        """Whether one of the limits is adaptive: it learns from every response."""
        return any(limit.algorithm == ADAPTIVE for limit in self._definitions)

    @cached_property
    def fails_open(self) -> bool:
        """Whether calls go out while the limits server cannot be reached."""
        known = all(name in self.limiter.limits for name in self.names())
        return known and all(limit.outage == "open" for limit in self._definitions)

    def log_pause(self, seconds: float) -> None:
        """Log that a response has paused the limits, unless it was logged just now."""
        until = time.monotonic() + seconds
        if until > self._paused_until + _LOGGED_EXTENSION_SECONDS:
            names = ", ".join(map(repr, self.names()))
            duration = "until it is resumed" if seconds == inf else f"for {seconds:.3f} s"
            logger.warning("The API behind %s asks for a pause: no calls %s", names, duration)
        self._paused_until = max(until, self._paused_until)
