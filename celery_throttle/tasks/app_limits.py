"""The limits of a Celery app: its settings, its limits, and those of its tasks and queues."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from celery import Celery, Task, _state

from celery_throttle.backend import Backend, disabled_backend, make_backend
from celery_throttle.errors import ConfigurationError, ThrottleError
from celery_throttle.limiter import Limiter
from celery_throttle.limits.limit import Limit, Limits
from celery_throttle.messages import packing
from celery_throttle.messages.broker import broker_identity
from celery_throttle.settings import Settings, Spec
from celery_throttle.store.keys import FAN_OUT_LIMIT, Keys
from celery_throttle.tasks.swallowed_waits import SwallowedWaits
from celery_throttle.tasks.task_limits import TaskLimits, read_templates


class AppLimits(Limiter):
    """The limits of a Celery app, as its tasks, fan-outs and workers use them.

    Args:
        app: the app.
        given: settings that are not read from ``app.conf``, by name; None for those that are.
    """

    def __init__(self, app: Celery, given: Mapping[str, Any]) -> None:
        self.app = app
        self.clock = None
        self._given = given
        self._tasks: dict[str, TaskLimits | ThrottleError | None] = {}

    @cached_property
    def settings(self) -> Settings:
        """The settings in force, read at first use."""
        return Settings(self.app.conf, self._given)

    @cached_property
    def limits(self) -> Mapping[str, Limits]:  # type: ignore[override]  # read at first use
        """The limits of the code."""
        return self.settings.limits

    @cached_property
    def backend(self) -> Backend:  # type: ignore[override]  # read at first use
        """Where the limits are decided."""
        limits, timeout = self.registered_limits, self.settings.timeout
        if self.settings.enabled:
            return make_backend(self.settings.url, limits, self.keys, timeout=timeout)
        return disabled_backend(limits, self.keys, "throttle_enabled is False")

    @property
    def registered_limits(self) -> Mapping[str, Limits]:
        """The limits of the code, and the one that lets fan-outs be paused."""
        return {**self.limits, FAN_OUT_LIMIT: (Limit.parse("1000000/s burst 1000000"),)}

    @cached_property
    def keys(self) -> Keys:  # type: ignore[override]  # read at first use
        """Names of keys in Redis."""
        return Keys(self.settings.prefix)

    @cached_property
    def _broker(self) -> str:
        """Identity of the broker that workers consume from: tasks in lines run there."""
        with self.app.connection_for_read() as connection:
            return broker_identity(connection)

    def task_name(self, packed: bytes) -> str | None:
        """Return the name of the task of a message in a line; None if it cannot be read."""
        try:
            name = packing.headers(packed).get("task")
        except packing.UnreadableMessageError:
            return None
        return name if isinstance(name, str) else None

    def qualify(self, queue: str) -> str:
        """Return the name of a queue with that of its broker, as lines are named."""
        return f"{self._broker}/{queue}"

    @cached_property
    def swallowed(self) -> SwallowedWaits:
        """Warns of tasks that catch the error with which they should step out."""
        return SwallowedWaits(self.app)

    def bind_task(self, task: type[Task]) -> None:
        """Forget the limits of a task that is defined, or defined anew."""
        self._tasks.pop(str(task.name), None)

    def knows(self, task: type[Task] | Task) -> bool:
        """Return whether the app has the limits that a task names."""
        try:
            return self.read_task(task) is not None
        except ThrottleError:
            return False

    def task_limits(self, task: Task) -> TaskLimits | None:
        """Return the limits of a task of the app, or None. They are read once.

        Raises:
            ThrottleError: the limits are wrong, or a setting is.
        """
        name = str(task.name)
        if name not in self._tasks:
            try:
                self._tasks[name] = self.read_task(task)
            except ThrottleError as error:
                self._tasks[name] = error
        limits = self._tasks[name]
        if isinstance(limits, ThrottleError):
            raise limits.with_traceback(None)
        return limits

    def read_task(
        self, task: type[Task] | Task, known: Mapping[str, Limits] | None = None
    ) -> TaskLimits | None:
        """Read and check the limits of a task: its own, or those of the route for its name.

        ``known`` are the limits that exist; those of the settings by default.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: the limits are wrong.
        """
        spec = self.spec_of(task)
        if spec is None:
            return None
        return TaskLimits.read(task, spec, self.settings.limits if known is None else known)

    def spec_of(self, task: type[Task] | Task) -> Spec | None:
        """Return the limits of a task as written: its own, or those of its route."""
        spec: Spec | None = getattr(task, "throttle", None)
        return self._route(str(task.name)) if spec is None else spec

    def check_routes(self) -> None:
        """Check that the routes name limits that exist.

        Raises:
            UnknownLimitError, LimitError, ConfigurationError: a route is wrong.
        """
        for pattern, spec in self.settings.routes.items():
            read_templates(spec, self.settings.limits, f"throttle_routes[{pattern!r}]")

    def _route(self, name: str) -> Spec | None:
        try:
            routes = self.settings.routes
        except ConfigurationError:  # a worker does not start then, and check() reports it
            return None
        if name in routes:
            return routes[name]
        return next((spec for glob, spec in routes.items() if fnmatchcase(name, glob)), None)


def active_throttles() -> list[AppLimits]:
    """Return the limits of all apps of this process that have any."""
    apps: Any = _state._get_active_apps()  # type: ignore[attr-defined]  # noqa: SLF001  # Celery's own list
    return [app.throttle for app in apps if getattr(app, "throttle", None) is not None]
