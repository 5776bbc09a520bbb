"""Warns of tasks that swallow a wait: they catch the error with which they should step out.

The error must be one that Celery ignores and that ``except Throttled`` catches, so ``except
Exception`` catches it as well; then the call is not made and the task does not wait. The end of a
run shows whether the error left the body.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import threading
import time
from collections.abc import Iterator
from multiprocessing import Lock
from multiprocessing.sharedctypes import RawArray
from types import TracebackType
from typing import Any
from zlib import crc32

from celery.exceptions import Ignore
from celery.signals import task_postrun
from celery.utils.log import get_logger

from celery_throttle.errors import Throttled

logger = get_logger(__name__)

#: Seconds between two warnings about the same task.
WARNING_INTERVAL_SECONDS = 60.0

#: Size of the table of times of the last warnings, which the processes of a pool share. A task's
#: entry follows from its name.
_TABLE_SIZE = 256

#: A handler that names one of these catches the error on purpose.
_OURS = re.compile(r"\b(Throttled|ThrottleError)\b")


class SwallowedWaits:
    """Warns of the tasks of one app.

    A worker makes it before its pool forks, so that its processes warn once together.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._times, self._alone = _shared()
        self._watching = False

    def watch(self) -> None:
        """Look at the ends of runs from now on: an error was raised in this process."""
        if not self._watching:
            self._watching = True
            task_postrun.connect(self._on_end, weak=False, dispatch_uid=f"swallowed {id(self)}")

    def _on_end(self, task: Any = None, retval: Any = None, **_: Any) -> None:
        """Look at the end of a run; ``retval`` is the result or error that left its body."""
        if getattr(task, "app", None) is not self._app:
            return
        run = task.request.__dict__.get("throttle_run")
        refusal: Throttled | None = None if run is None else run.refusal
        if refusal is None:
            return
        run.refusal = None
        left = isinstance(retval, Throttled) and isinstance(retval, Ignore)
        if not left and not _names_it(refusal.__traceback__) and self._is_time(str(task.name)):
            self._warn(task, refusal)

    def _is_time(self, name: str) -> bool:
        """Return whether a warning is due, and note that it is given."""
        # Never wait for this lock: a process that was killed may hold it for ever.
        if not self._alone.acquire(False):  # noqa: FBT003  # by position it is the same of all locks
            return False
        try:
            index, now = crc32(name.encode()) % _TABLE_SIZE, time.monotonic()
            last = self._times[index]
            if last and now - last < WARNING_INTERVAL_SECONDS:
                return False
            self._times[index] = now
            return True
        finally:
            self._alone.release()

    @staticmethod
    def _warn(task: Any, refusal: Throttled) -> None:
        logger.warning(
            "Task %s[%s] swallowed a wait: %s, and the task went on instead of stepping into its "
            "line. If 'except Exception' caught that, write 'except Throttled: raise' before it; "
            "if the task is to do something else then, write 'except Throttled'",
            task.name,
            task.request.id,
            refusal,
        )


def _shared() -> tuple[Any, Any]:
    """Make a table and a lock that processes forked from this one share."""
    try:
        return RawArray("d", _TABLE_SIZE), Lock()
    except (ImportError, OSError):  # no shared memory on this system
        return [0.0] * _TABLE_SIZE, threading.Lock()


def _names_it(trace: TracebackType | None) -> bool:
    """Return whether the code that caught an error names it (``except Throttled``).

    The traceback has the frames that an exception has passed; the first one caught it.
    """
    if trace is None:
        return False
    code, line = trace.tb_frame.f_code, trace.tb_lineno
    try:
        source, _ = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, SyntaxError, TypeError):
        return False
    return any(map(_OURS.search, _catchers(tree, line - code.co_firstlineno + 1)))


def _catchers(tree: ast.AST, line: int) -> Iterator[str]:
    """Yield the handlers, as written, that may have caught an exception raised by a line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            first, last = node.body[0].lineno, node.body[-1].end_lineno or line
            if first <= line <= last:
                yield from (ast.unparse(one.type) for one in node.handlers if one.type)
        elif isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= (
            node.end_lineno or line
        ):
            yield from (ast.unparse(item.context_expr) for item in node.items)
