"""What all pages use: the limiter, the names of queues, and recent periods."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar, runtime_checkable

from flask import request

from celery_throttle.errors import ConfigurationError
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.key import LimitRef, check_name, parse_key
from celery_throttle.observe.observer import Observer
from celery_throttle.observe.status.fleet import read_fleet
from celery_throttle.observe.status.records import RECENT_SECONDS, RECORD_SECONDS, read_periods
from celery_throttle.observe.values import Change, Period
from celery_throttle.operations.plan import Plan

T = TypeVar("T")

#: The periods of a chart: 30 seconds each.
_PERIODS = 30

#: The newest changes among which those of an action are searched.
_NEWEST_CHANGES = 200

#: Limits whose periods are kept.
_CACHE_SIZE = 1000


@runtime_checkable
class TaskMethods(Protocol):
    """The methods for waiting tasks that a Throttle adds to a Limiter; see there."""

    def __getitem__(self, item: Any) -> Any:
        """Return the handle of a limit, with the methods for its waiting tasks."""

    def fan_out_named(self, name: str) -> Any:
        """Return the handle of a fan-out."""


@dataclass(frozen=True)
class Site:
    """What all pages use. Thread-safe.

    Attributes:
        limiter: the limits.
        show_arguments: whether the arguments of waiting tasks are shown.
    """

    limiter: Limiter
    show_arguments: bool = False

    @property
    def observer(self) -> Observer:
        """What the readers of the status use."""
        return self.limiter.observer

    def run(self, plan: Plan[T]) -> T:
        """Run a plan."""
        return self.limiter.run_plan(plan)

    @property
    def has_app(self) -> bool:
        """Whether the limits are those of an app, which can take tasks out of lines."""
        return isinstance(self.limiter, TaskMethods)

    @property
    def task_methods(self) -> TaskMethods:
        """The methods for waiting tasks. ConfigurationError: there is no app."""
        if not isinstance(self.limiter, TaskMethods):
            raise ConfigurationError("this needs the app, whose broker and results have the tasks")
        return self.limiter

    def read_time(self) -> datetime:
        """Return the server's time."""
        return self.run(read_fleet(self.observer)).at

    def find_done(self) -> list[Change]:
        """Return the changes that the argument ``done`` names, the oldest first.

        Those that are not among the newest are left out.
        """
        ids = request.args.getlist("done")
        newest = self.limiter.changes(most=_NEWEST_CHANGES) if ids else []
        return [change for change in reversed(newest) if change.id in ids]

    def queue_name(self, queue: str) -> str:
        """Return the name of a queue without its broker, if that is the app's."""
        return queue.removeprefix(self.limiter.own_broker)

    @cached_property
    def _recent(self) -> dict[str, tuple[float, tuple[Period, ...]]]:
        """Recent periods by the name of the limit, each with the time until which they are kept."""
        return {}

    def recent(self, name: str) -> tuple[Period, ...]:
        """Return the last 15 minutes of a limit.

        They are as old as the records on the server may be, so that polls in between find the same.
        """
        now = time.monotonic()
        kept_until, periods = self._recent.get(name, (0.0, ()))
        if kept_until <= now:
            periods = self.run(read_periods(self.observer, name, RECENT_SECONDS, _PERIODS))
            if len(self._recent) >= _CACHE_SIZE:
                self._recent.clear()
            self._recent[name] = now + RECORD_SECONDS, periods
        return periods


def read_ref(name: str) -> LimitRef:
    """Return the limit of a page and the key of its argument, as people write it or encoded."""
    key = request.values.get("key", "").strip()
    return LimitRef(check_name(name), parse_key(key) if key else None)
