"""The base class of tasks with limits."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from celery import Task

from celery_throttle.tasks import option_warnings
from celery_throttle.tasks.rate_limit_warning import warn_of_rate_limit
from celery_throttle.tasks.send_check import limits_to_send
from celery_throttle.tasks.settings import Spec
from celery_throttle.tasks.task_limits import CostSpec


class ThrottledTask(Task):
    """The base class of tasks with limits. ``Throttle(app)`` makes it the app's default base class.

    The attributes are options of ``@app.task(...)``, or attributes of a class.

    Attributes:
        throttle: The limits: ``"stripe"``; ``"mail:{tenant_id}"``, whose key is the argument of
            that name; or a list of these, all of which must allow the task. None (the default): the
            app's ``throttle_routes`` decide.
        throttle_cost: Units that the task takes from each of its limits, above 0, whole or not. Or
            ``"{tokens}"``, the argument that contains the number. Or a dict that maps limit names
            to one of these; for a limit that it does not contain, the cost is 1. A task takes one
            slot of a limit with slots, whatever its cost. Default 1.
        throttle_max_wait: Seconds, 0 to 1e9. A task that is expected to wait longer does not join
            its line. None (the default): any wait.
        throttle_on_max_wait: What happens to such a task. ``"fail"`` (the default): it fails at
            once with :class:`WaitTooLongError`. ``"drop"``: it is discarded, and its state becomes
            REVOKED. The same applies to :class:`QueueFullError` and :class:`KeysFullError`.
        throttle_track: Whether a waiting task shows the state THROTTLED in the result backend, with
            ``limit``, ``key``, ``position`` and ``expected`` (seconds). Default False.

    Example:
        ::

            @app.task(throttle="openai", throttle_cost="{tokens}", throttle_max_wait=600)
            def summarize(text, tokens): ...
    """

    abstract = True
    Request = "celery_throttle.worker.request:ThrottledRequest"

    throttle: Spec | None = None
    throttle_cost: CostSpec = 1
    throttle_max_wait: float | None = None
    throttle_on_max_wait: Literal["fail", "drop"] = "fail"
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
            option_warnings.warn(
                option_warnings.find_in_task(cls, ThrottledTask), inspect.unwrap(cls.run)
            )
            if cls.throttle is not None:
                warn_of_rate_limit(cls, cls.throttle)
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
        """
        limits = limits_to_send(self.app, self)
        if limits is None or positional or self.app.conf.task_always_eager:
            return super().apply_async(args, kwargs, *positional, **options)
        throttle: Any = self.app.throttle  # type: ignore[attr-defined]  # it knows the limits
        if throttle.line_publisher is None:
            return super().apply_async(args, kwargs, *positional, **options)
        return throttle.line_publisher.send(super().apply_async, args, kwargs, **options)
