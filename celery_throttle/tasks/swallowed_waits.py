"""Warnings of tasks that swallow a wait: they catch the refusal with which they should step aside.

A refusal within a task must be an exception that Celery ignores and that ``except Throttled``
catches, so ``except Exception`` catches it as well, and the call is not made. At the end of a run
it is known whether the refusal left the body.
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

#: Seconds between two warnings that name the same task.
COMPLAIN = 60.0

#: Times of the last warnings that the processes of a pool share; a task's name says which is its.
_TIMES = 256

#: A handler that names one of these knows what it catches.
_OURS = re.compile(r"\b(Throttled|ThrottleError)\b")


class Swallowed:
    """Of one app. Made by a worker before its pool forks: its processes complain once, not each.

    Args:
        app: the app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._times, self._alone = _shared()
        self._watching = False

    def watch(self) -> None:
        """A refusal was raised in this process: from now on it looks at the ends of runs."""
        if not self._watching:
            self._watching = True
            task_postrun.connect(self._on_end, weak=False, dispatch_uid=f"swallowed {id(self)}")

    def _on_end(self, task: Any = None, retval: Any = None, **_: Any) -> None:
        """A run is over; what left its body is ``retval``."""
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
        """Whether it is time for a warning, which is given then."""
        # Nobody waits here: a process that was killed may have it for ever.
        if not self._alone.acquire(False):  # noqa: FBT003  # by position it is the same of all locks
            return False
        try:
            place, now = crc32(name.encode()) % _TIMES, time.monotonic()
            last = self._times[place]
            if last and now - last < COMPLAIN:
                return False
            self._times[place] = now
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
    """Times, and a lock, that processes share which are forked from this one."""
    try:
        return RawArray("d", _TIMES), Lock()
    except (ImportError, OSError):  # not every system has shared memory, or lets one use it
        return [0.0] * _TIMES, threading.Lock()


def _names_it(trace: TracebackType | None) -> bool:
    """Whether the code that caught a refusal names it: ``except Throttled``, ``suppress(...)``.

    The frames that an exception has passed are in its traceback: the first one caught it.
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
    """What may have caught an exception that a line has raised, as it is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            first, last = node.body[0].lineno, node.body[-1].end_lineno or line
            if first <= line <= last:
                yield from (ast.unparse(one.type) for one in node.handlers if one.type)
        elif isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= (
            node.end_lineno or line
        ):
            yield from (ast.unparse(item.context_expr) for item in node.items)
