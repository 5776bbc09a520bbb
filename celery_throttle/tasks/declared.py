"""What the code and one rules file declare together: limits, and the routes of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from celery_throttle.errors import ThrottleError
from celery_throttle.limits.limit import Limits
from celery_throttle.limits.rules.rules import Rules, compile_route
from celery_throttle.tasks.settings import Settings, Spec
from celery_throttle.tasks.task_limits import TaskLimits


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

    def route(self, task: str) -> Spec | None:
        """Return the limits of a task by its name: by the routes of the file, or else of the code.

        Raises:
            ConfigurationError: the setting ``throttle_routes`` is wrong.
        """
        found = _find(self.rules.routes, task) if self.rules else None
        return _find(self._settings.routes, task) if found is None else found


def _find(routes: Mapping[str, Spec], task: str) -> Spec | None:
    """Return the route for a name, or else of the first pattern that matches."""
    if task in routes:
        return routes[task]
    return next((spec for route, spec in routes.items() if compile_route(route).match(task)), None)
