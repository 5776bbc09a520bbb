"""Checks the limits of a task before it is sent, so a mistake fails only that task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery import Celery, Task
from kombu.utils.functional import maybe_list

from celery_throttle.errors import ConfigurationError, UnknownLimitError
from celery_throttle.tasks.app_limits import active_throttles
from celery_throttle.tasks.task_limits import TaskLimits

#: Options of a message that hold the tasks to run after it.
_FOLLOWING = ("chain", "chord", "link", "link_error")


class CheckedSend:
    """Replaces an app's ``send_task``: checks the limits of a task, and of those after it, first.

    Every way to send a task of the app comes here: methods, signatures, names, Celery's beat.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        #: What somebody else has replaced it by before; None if the class has it.
        self._own_send = vars(app).get("send_task")

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """Send a task as Celery does.

        Raises:
            ThrottleError: the limits of a task that this process knows are wrong.
        """
        tasks: Mapping[str, Task] = self._app._tasks  # type: ignore[attr-defined]  # noqa: SLF001  # app.tasks would finalize the app
        for each in (name, *_names_after(options)):
            task = tasks.get(each)
            if task is not None:
                limits_to_send(self._app, task)
        if self._own_send is not None:
            return self._own_send(name, *args, **options)
        # Looked up now: tracers replace the method of the class, at any time.
        return type(self._app).send_task(self._app, name, *args, **options)


def _names_after(options: Mapping[str, Any]) -> Iterator[str]:
    for option in _FOLLOWING:
        for signature in maybe_list(options.get(option)) or ():
            if isinstance(signature, Mapping):
                yield str(signature.get("task"))


def limits_to_send(app: Any, task: Task) -> TaskLimits | None:
    """Return the limits of a task that is about to be sent; None if it has none in this app.

    Celery shares the tasks of one app with every other app of the process. A task whose limits
    another app defines belongs to that app: it is an error only if a worker of this app runs it.
    So it is with limits that the rules file may define, if this process could not read it.

    Raises:
        ThrottleError: the limits are wrong.
    """
    throttle = getattr(app, "throttle", None)
    if throttle is None:
        if getattr(task, "throttle", None) is None or is_limited_elsewhere(app, task):
            return None
        raise ConfigurationError(
            f"task {task.name!r} has limits, but its app has none: make a Throttle(app) first"
        )
    try:
        limits: TaskLimits | None = throttle.task_limits(task)
    except UnknownLimitError:
        if is_limited_elsewhere(app, task) or throttle.lacks_rules:
            return None
        raise
    return limits


def is_limited_elsewhere(app: Any, task: type[Task] | Task) -> bool:
    """Return whether another app of this process has the limits that a task names."""
    return any(throttle.knows(task) for throttle in active_throttles() if throttle.app is not app)
