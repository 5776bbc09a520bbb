"""The error with which a task steps out of its process, its line in the log, and its loss.

The error must be one that Celery ignores and that ``except Throttled`` catches, so ``except
Exception`` catches it as well; then the task does not wait, and goes on without its request. The
end of a run shows whether the error left the body. No import of the worker's parts: this runs in
the pool's processes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from celery.exceptions import Ignore
from celery.signals import task_postrun
from celery.utils.log import get_logger

from celery_throttle.errors import StoreError, Throttled
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.observe.status.stored import begin_once

logger = get_logger(__name__)

#: A name and key, and millionths of a unit of it; sent between processes.
Item = tuple[str, str | None, int]

#: Time between two warnings of tasks of one name, by whichever process.
_WARNING_SECONDS = 86_400.0


class TaskThrottled(Throttled, Ignore):
    """A limit refused within a task, which steps into its line. Celery only logs this error.

    Attributes:
        limit: See :class:`Throttled`; so for ``key``, ``retry_after`` and ``paused``.
        requested: The limits for which the task waits.
    """

    def __init__(
        self,
        limit: str,
        key: str | None,
        retry_after: float | None,
        requested: Sequence[Item],
        paused: float = 0.0,
    ) -> None:
        super().__init__(limit, key, retry_after, paused)
        self.requested = tuple(requested)
        self.args = (limit, key, retry_after, self.requested, paused)

    @property
    def description(self) -> str:
        """Text for Celery's log: that the task waits, and for which limit."""
        return f"waits for {self._subject}"


def _describe_wait(record: logging.LogRecord) -> bool:
    """Let Celery log that a task waits, not that it is "ignored": a filter that passes all lines.

    Celery logs while it handles the error, but its record holds only the error's text.
    """
    error = sys.exc_info()[1]
    if isinstance(error, TaskThrottled) and isinstance(record.args, dict):
        record.args["description"] = error.description
    return True


class SwallowedWaits:
    """Warns of the tasks of one app that catch the error with which they should step out.

    Args:
        app: the app.
        limiter: its limits.
    """

    def __init__(self, app: Any, limiter: Limiter) -> None:
        self._app = app
        self._limiter = limiter
        self._names: set[str] = set()

    def watch(self) -> None:
        """Look at the ends of runs from now on: an error was raised in this process."""
        # Each is added once.
        logging.getLogger("celery.app.trace").addFilter(_describe_wait)
        task_postrun.connect(self._on_end, weak=False, dispatch_uid=f"swallowed {id(self)}")

    def _on_end(self, task: Any = None, retval: Any = None, **_: Any) -> None:
        """Look at the end of a run; ``retval`` is the result or error that left its body."""
        if getattr(task, "app", None) is not self._app:
            return
        run = task.request.__dict__.get("throttle_run")
        refusal: Throttled | None = None if run is None else run.refusal
        name = str(task.name)
        if refusal is None or isinstance(retval, TaskThrottled) or name in self._names:
            return
        self._names.add(name)
        if self._is_first(name):
            logger.warning(
                "Task %s[%s] swallowed a wait: %s, and the task went on instead of stepping into "
                "its line. If 'except Exception' caught that, write 'except Throttled: raise' "
                "before it. To do something else instead of waiting, call try_acquire()",
                name,
                task.request.id,
                refusal,
            )

    def _is_first(self, task_name: str) -> bool:
        """Return whether no process has warned of a task today, as far as the server can tell."""
        plan = begin_once(self._limiter.observer, f"swallowed {task_name}", _WARNING_SECONDS)
        try:
            return self._limiter.run_plan(plan)
        except StoreError:
            return True
