"""The limits and routes that an app declares: in its code, and in its rules file.

``throttle_rules`` is the path of the file.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from celery_throttle.errors import ConfigurationError, RulesError, ThrottleError
from celery_throttle.limits.duration import to_us
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.file import RulesFile
from celery_throttle.limits.rules.rules import Route, Rules, compile_route
from celery_throttle.operations.rules import FileRules
from celery_throttle.tasks.functions import read_attribute
from celery_throttle.tasks.settings import Settings
from celery_throttle.tasks.task_limits import TaskLimits, named

logger = logging.getLogger(__name__)

#: Time between two looks at the file, in a process that is no worker.
POLL_SECONDS = 5.0


class Declared:
    """Limits and routes of the code and of one rules file.

    It never changes, so the limits of tasks are cached with it: when the rules change, another one
    takes its place.

    Attributes:
        rules: of the file; None if there are none.
        tasks: the limits of tasks that were read, by name, or the error.
    """

    def __init__(self, settings: Settings, rules: Rules | None) -> None:
        self._settings = settings
        self.rules = rules
        self.tasks: dict[str, TaskLimits | ThrottleError | None] = {}

    @cached_property
    def limits(self) -> Mapping[str, Limits]:
        """Name to limits: of the file, or else of the code."""
        of_file = self.rules.limits.items() if self.rules else ()
        names = {ref.name: limits for ref, limits in of_file if ref.key is None}
        return {**self._settings.limits, **names}

    def read(self, task: Any, known: Mapping[str, Limits] | None = None) -> TaskLimits | None:
        """Read and check the limits of a task: its own, or those of the route for its name.

        ``known`` are the limits that exist; those declared by default.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: the limits are wrong.
        """
        route = self.route_of(task)
        if route is None:
            return None
        known = self.limits if known is None else known
        cost = read_attribute(task, "throttle_cost", 1) if route.cost is None else route.cost
        limits = TaskLimits.read(task, route.limits, cost, known)
        with named(f"task {task.name!r}"):
            self._settings.shards.check_templates(limits.templates)
        return limits

    def error_of(self, task: Any) -> ThrottleError | None:
        """Return the error that :meth:`read` raises, or None."""
        try:
            self.read(task)
        except ThrottleError as error:
            return error
        return None

    def route_of(self, task: Any) -> Route | None:
        """Return the limits of a task as written: its own, or those of its route, and its cost.

        The routes of the file come before those of the code.
        """
        own = read_attribute(task, "throttle")
        if own is not None:
            return Route(own)
        route = _find_route(self.rules.routes, str(task.name)) if self.rules else None
        if route is not None:
            return route
        try:
            return _find_route(self._settings.routes, str(task.name))
        except ConfigurationError:  # a worker does not start then, and check() reports it
            return None


def _find_route(routes: Mapping[str, Route], task: str) -> Route | None:
    """Return the route for a name, or else of the first pattern that matches."""
    if task in routes:
        return routes[task]
    return next((each for route, each in routes.items() if compile_route(route).match(task)), None)


class AppRules:
    """Reads the rules file, and has the rules that this process uses.

    A process reads the file when it needs the rules, at most every :data:`POLL_SECONDS`. The main
    process of a worker has a thread for that, which also adopts the rules that are in force on the
    server: they may be those of a newer file.

    Args:
        path: of the file.
        code: the limits of the code; None if they are wrong.
        check: raises RulesError for rules with which tasks of this process would fail.

    Attributes:
        of_file: the rules of the file; None if it has had none without mistakes.
        was_replaced: whether the file has changed since this process read it first. A change is
            new, even if an old file was moved to this path.
    """

    def __init__(
        self, path: str, code: Mapping[str, Limits] | None, check: Callable[[Rules, str], None]
    ) -> None:
        self.path = path
        self.of_file: FileRules | None = None
        self.was_replaced = False
        self._file = RulesFile(path, code, check)
        self._in_use: Rules | None = None
        self._polled_at: float | None = None
        self._watcher: int | None = None

    @property
    def error(self) -> RulesError | None:
        """Why the present content of the file is not used; None if it is."""
        return self._file.error

    def in_use(self) -> Rules | None:
        """Return the rules that this process uses; None if there are none."""
        if self._watcher != os.getpid():  # a forked process of a worker has no thread for this
            self._poll_sometimes()
        return self._in_use

    def use(self, rules: Rules | None) -> None:
        """Use these rules; from now on the caller polls."""
        self._watcher = os.getpid()
        self._in_use = rules

    def release(self) -> None:
        """Let this process read the file when it needs the rules: nobody polls any more."""
        self._watcher = None

    def poll(self) -> None:
        """Read the file. A mistake is logged once, and leaves the rules as they are."""
        is_first, self._polled_at = self._polled_at is None, time.monotonic()
        try:
            rules = self._file.poll()
        except RulesError as error:
            is_fork = self._watcher not in (None, os.getpid())  # of a worker, which logs it
            level = logging.DEBUG if is_fork else logging.ERROR
            logger.log(level, "The rules stay as they are, since their file is wrong:\n%s", error)
            return
        if rules is not None:
            self.was_replaced = not is_first
            modified = self._file.modified if is_first else time.time()
            self.of_file = FileRules(rules, self.path, to_us(modified))

    def _poll_sometimes(self) -> None:
        if self._polled_at is None or time.monotonic() - self._polled_at >= POLL_SECONDS:
            self.poll()
            if self.of_file is not None:
                self._in_use = self.of_file.rules
