"""Middleware: what ThrottledWSGI and ThrottledASGI share."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from celery_throttle.errors import ConfigurationError, shown
from celery_throttle.inbound.admitter import Admitter
from celery_throttle.inbound.rules import KeySpec, RequestCost
from celery_throttle.limiter.handles import LimitHandles

App = TypeVar("App")

#: The key in the environ or scope under which an app finds the Decision about its request.
DECISION = "celery_throttle.decision"


class Middleware(Generic[App]):
    """An app with limits; for the arguments, see the subclasses."""

    def __init__(
        self,
        app: App,
        limits: LimitHandles,
        *,
        key: KeySpec | None = None,
        cost: RequestCost = 1,
        max_wait: float = 0.0,
        lease: float = 30.0,
        outage: str = "open",
        headers: bool = True,
        refused: App | None = None,
    ) -> None:
        for name, value in (("app", app), ("refused", refused)):
            if not callable(value) and (value is not None or name == "app"):
                raise ConfigurationError(f"{name} must be callable, not {shown(value)}")
        self.app = app
        self._refused = refused
        options: dict[str, Any] = {"key": key, "cost": cost, "max_wait": max_wait, "lease": lease}
        self._admitter = Admitter.read(limits, **options, outage=outage, headers=headers)
