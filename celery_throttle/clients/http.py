"""Guards of HTTP clients: they learn from status codes and response headers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery_throttle.clients import response_headers
from celery_throttle.clients.guard import Guard
from celery_throttle.clients.guarded_call import Exchange, R
from celery_throttle.clients.response_headers import REQUESTS, RateLimitInfo
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import Requirement

logger = logging.getLogger(__name__)

#: Seconds between two log lines about headers that cannot be used.
WARNING_INTERVAL_SECONDS = 60.0

#: The type of ``unit``. It is one unit for all limits, such as ``"tokens"``, or a mapping of units
#: by the name of the limit.
Units = str | Mapping[str, str]


class HttpGuard(Guard):
    """The limits of one HTTP client's requests.

    Args:
        limit: See :class:`~celery_throttle.clients.guard.Guard`.
        unit: The unit that the limits count, such as ``"requests"`` (the default) or ``"tokens"``:
            only the remaining quota of this unit counts. For several limits, a dict of units by the
            name of the limit; limits that are not in it do not learn. Several limits without
            ``unit`` learn from refusals, but not from remaining quotas.
        options: The other arguments of :class:`~celery_throttle.clients.guard.Guard`. ``key`` and
            ``cost`` take the client's request, ``usage`` its response with the whole body in
            memory. A request counts as refused with status 429, and with 503 or 403 and
            ``Retry-After``.

    Raises:
        LimitError: An argument is invalid.
    """

    def __init__(self, limit: LimitHandles, *, unit: Units | None = None, **options: Any) -> None:
        super().__init__(limit, **options)
        names = self.names()
        units = unit.values() if isinstance(unit, Mapping) else [unit or REQUESTS]
        if unit == "" or not all(isinstance(one, str) and one for one in units):
            raise LimitValueError(f"unit must be text such as 'requests', not {shown(unit)}")
        unknown = sorted(set(unit) - set(names)) if isinstance(unit, Mapping) else []
        if unknown:
            raise LimitValueError(f"unit names {shown(unknown[0])}, which is not one of the limits")
        if isinstance(unit, Mapping):
            self._units = dict(unit)
        elif unit is not None or len(names) == 1:
            self._units = dict.fromkeys(names, unit or REQUESTS)
        else:
            self._units = {}
        self._learning = self._units if isinstance(unit, Mapping) else names
        self._warned_at = -WARNING_INTERVAL_SECONDS

    def learning(self, requirement: Requirement) -> Requirement | None:
        """Return the part of a requirement whose limits are the API's own."""
        pairs = zip(requirement.refs, requirement.costs, strict=True)
        found = [(ref, cost) for ref, cost in pairs if ref.name in self._learning]
        if len(found) == len(requirement.refs):
            return requirement
        return Requirement(*map(tuple, zip(*found, strict=True))) if found else None

    def feedback(self, status: int, headers: Mapping[str, str], seconds: float) -> Feedback:
        """Return what a response says about limits, ``seconds`` after its request."""
        info = response_headers.read(status, headers, time.time())
        if info.warnings:
            self._warn(info)
        return to_feedback(info, self._units, seconds)

    def _warn(self, info: RateLimitInfo) -> None:
        now = time.monotonic()
        if now - self._warned_at > WARNING_INTERVAL_SECONDS:
            self._warned_at = now
            names, warnings = ", ".join(map(repr, self.names())), "; ".join(info.warnings)
            logger.warning("Odd headers in a response of the API behind %s: %s", names, warnings)


class HttpExchange(Exchange[R]):
    """One request of an HTTP client. A subclass knows the client's classes."""

    def __init__(self, guard: HttpGuard, request: Any, send: Callable[[], Any]) -> None:
        self.guard = guard
        self.request = request
        self.send = send


def to_feedback(info: RateLimitInfo, units: Mapping[str, str], seconds: float) -> Feedback:
    """Return the feedback for limits that count these units.

    Of several quotas in one unit, the one with the least remaining counts. A quota with nothing
    remaining pauses the limits until it resets, unless the API says for how long.
    """
    quotas = [quota for quota in info.quotas if quota.unit in units.values()]
    resets = [quota.reset_after for quota in quotas if quota.remaining == 0]
    stop = info.retry_after
    if stop is None:
        stop = max((reset for reset in resets if reset is not None), default=None)
    remaining = {
        name: min(quota.remaining for quota in quotas if quota.unit == unit)
        for name, unit in units.items()
        if any(quota.unit == unit for quota in quotas)
    }
    return Feedback(refused=info.refused, stop=stop, left=remaining or None, took=seconds)
