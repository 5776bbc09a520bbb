"""The base class of tasks with limits, and the check of limits before a task is sent."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from celery import Celery, Task
from kombu.utils.functional import maybe_list

from celery_throttle.errors import ConfigurationError, ThrottleError, UnknownLimitError, shown
from celery_throttle.limits.duration import Duration
from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.app_limits import AppLimits, active_throttles
from celery_throttle.tasks.costs import CostSpec
from celery_throttle.tasks.settings import Spec
from celery_throttle.tasks.task_limits import TaskLimits

#: Options of a message that hold the tasks to run after it.
_FOLLOWING = ("chain", "chord", "link", "link_error")


class ThrottledTask(Task):
    """The base class of tasks with limits. ``Throttle(app)`` makes it the app's default base class.

    The attributes are options of ``@app.task(...)``, or attributes of a class.

    Attributes:
        throttle: The limits: ``"stripe"``; ``"mail:{tenant_id}"``, whose key is the argument of
            that name; a handle with a key; a function of arguments that returns one of these, or
            None for no limit; or a list of these, all of which must allow the task. None (the
            default): the app's ``throttle_routes`` decide.
        throttle_cost: Units that the task takes from each of its limits, above 0, whole or not. Or
            ``"{tokens}"``, the argument that contains the number; or ``"len({items})"``, the
            argument whose length it is; or a function of arguments that returns it. Or a dict that
            maps limit names to one of these; for a limit that it does not contain, the cost is 1. A
            task takes one slot of a limit with slots, whatever its cost. Default 1.
        throttle_max_wait: Seconds, 0 to 1e9. A task that is expected to wait longer does not join
            its line. None (the default): any wait.
        throttle_on_max_wait: What happens to such a task. ``"fail"`` (the default): it fails at
            once with :class:`WaitTooLongError`. ``"drop"``: it is discarded, and its state becomes
            REVOKED. The same applies to :class:`QueueFullError` and :class:`KeysFullError`.
        throttle_keep_waiting: Which of the tasks that wait with the same name, limits and keys go
            on waiting. ``"all"`` (the default); ``"newest"``: a task that begins to wait replaces
            the one that waits; or ``"first"``: while one waits, no other joins it. The others end
            with the state REVOKED. A task that runs does not wait; one that waits again (a retry,
            a run that a limit stopped, a task whose worker died) gives way to the one that waits.
        throttle_settles: Whether ``throttle_cost`` is an estimate: calls in the body use these
            units, by ``reserve()`` or a wrapped client, and settle them. The units that no call
            uses are refunded at the end of the task. Default False.
        throttle_restart: Whether a run that has sent requests to an API may join a line when a
            limit refuses its next request. The task then starts from its beginning, and sends them
            again. Default False: the request waits in the process, or fails.
        throttle_track: Whether a waiting task shows the state THROTTLED in the result backend, with
            ``limit``, ``key``, ``position`` and ``expected`` (seconds). Default False.

    Example:
        ::

            @app.task(throttle="openai", throttle_cost="{tokens}", throttle_max_wait="10m")
            def summarize(text, tokens): ...
    """

    abstract = True
    Request = "celery_throttle.worker.request:ThrottledRequest"

    throttle: Spec | None = None
    throttle_cost: CostSpec = 1
    throttle_max_wait: Duration | None = None
    throttle_on_max_wait: Literal["fail", "drop"] = "fail"
    throttle_keep_waiting: Literal["all", "newest", "first"] = "all"
    throttle_settles: bool = False
    throttle_restart: bool = False
    throttle_track: bool = False

    _is_warned_of = False

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Warn of misspelt attributes.

        Nothing is raised here: Celery defines many tasks in one go, and an error would stop that.
        Wrong limits are an error when the task is sent, and when a worker starts.

        :meta private:
        """
        super().on_bound(app)
        if "_is_warned_of" not in vars(cls):  # Celery binds a task again and again
            cls._is_warned_of = True
            misspelt = option_warnings.find_in_task(cls, ThrottledTask)
            option_warnings.warn((one.text for one in misspelt), inspect.unwrap(cls.run))
            if cls.throttle is not None:
                option_warnings.warn_of_rate_limit(cls)
        if hasattr(app, "throttle"):
            app.throttle.bind_task(cls)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any
    ) -> Any:
        """Send the task as Celery does, or to its line; see the setting ``throttle_publish``.

        Args:
            args: As for Celery's ``Task.apply_async``.
            kwargs: As for Celery's ``Task.apply_async``.
            *positional: As for Celery's ``Task.apply_async``.
            **options: As for Celery's ``Task.apply_async``.

        Raises:
            ThrottleError: The limits of the task are wrong.
            ConfigurationError: An option is one of a task, such as ``throttle``.
        """
        _refuse_task_options(options)
        send = super().apply_async
        if limits_to_send(self.app, self) and not (positional or self.app.conf.task_always_eager):
            throttle: Any = self.app.throttle  # type: ignore[attr-defined]  # it knows the limits
            if throttle.line_publisher is not None:
                return throttle.line_publisher.send(send, args, kwargs, **options)
        return send(args, kwargs, *positional, **options)


class CheckedSend:
    """Replaces an app's ``send_task``, see :class:`~celery_throttle.Throttle`: checks limits first.

    It checks those of the task, and of the tasks that follow it.

    Every way to send a task of the app comes here: methods, signatures, names, Celery's beat. So a
    mistake in the limits of a task fails only that task.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        #: What somebody else has replaced it by before; None if the class has it.
        self._own_send = vars(app).get("send_task")

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """Send a task as Celery does.

        Raises:
            ThrottleError: the limits of a task that this process knows are wrong.
            ConfigurationError: an option is one of a task, such as ``throttle``.
        """
        _refuse_task_options(options)
        tasks: Mapping[str, Task] = self._app._tasks  # type: ignore[attr-defined]  # noqa: SLF001  # app.tasks would finalize the app
        for each in (name, *_names_after(options)):
            task = tasks.get(each)
            if task is not None:
                limits_to_send(self._app, task)
        if self._own_send is not None:
            return self._own_send(name, *args, **options)
        # Looked up now: tracers replace the method of the class, at any time.
        return type(self._app).send_task(self._app, name, *args, **options)


def _refuse_task_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a task that are given to a call: Celery would ignore them."""
    for name in options:
        if name.startswith(option_warnings.OURS):
            raise ConfigurationError(
                f"{name}={shown(options[name])} has no effect on one call: limits belong to the "
                f"task; write @app.task({name}=...), or a route in throttle_routes; a key may come "
                "from an argument: throttle='mail:{tenant_id}'"
            )


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


def is_limited_elsewhere(app: Any, task: Task) -> bool:
    """Return whether another app of this process has the limits that a task names."""
    others = (throttle for throttle in active_throttles() if throttle.app is not app)
    return any(_is_limited(throttle, task) for throttle in others)


def _is_limited(throttle: AppLimits, task: Task) -> bool:
    try:
        return throttle.declared.read(task) is not None
    except ThrottleError:
        return False
