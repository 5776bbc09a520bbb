"""Warns of tasks that have limits and Celery's own ``rate_limit``."""

from __future__ import annotations

import inspect
import warnings
from contextlib import suppress
from fractions import Fraction
from typing import Any

from celery.utils.time import rate

from celery_throttle.errors import LimitError
from celery_throttle.limits.limit import Limit
from celery_throttle.tasks.option_warnings import ThrottleWarning
from celery_throttle.tasks.settings import Spec


def warn_of_rate_limit(task: Any, spec: Spec) -> None:
    """Warn if a task has a ``rate_limit``, its own or the app's ``task_default_rate_limit``."""
    written = task.rate_limit
    with suppress(TypeError, ValueError):  # Celery reports a wrong rate_limit itself
        if written is None or not rate(str(written)):
            return
        names = [spec] if isinstance(spec, str) else list(spec)
        name = f"{str(task.name).rpartition('.')[2]}-rate"
        text = (
            f"task {task.name!r} has limits and rate_limit={written!r}, which counts in each "
            "worker by itself and keeps tasks waiting there; write it as one more limit, which "
            f"counts in all workers together: throttle_limits = {{..., {name!r}: "
            f"{_as_limit(written)!r}}}, throttle = {[*names, name]!r}, rate_limit = 0"
        )
        run = inspect.unwrap(task.run)
        code = getattr(run, "__code__", None)
        file, line = (code.co_filename, code.co_firstlineno) if code else (task.__module__, 0)
        # Celery binds a task more than once; the registry lets Python show the warning once.
        shown = getattr(run, "__globals__", {}).setdefault("__warningregistry__", {})
        warnings.warn_explicit(text, ThrottleWarning, file, line, registry=shown)


def _as_limit(written: str | float) -> str:
    """Return a ``rate_limit`` as a limit; Celery also allows fractions and plain numbers."""
    text = str(written)
    try:
        Limit.parse(text)
    except LimitError:
        ticks = Fraction(rate(text)).limit_denominator(1_000_000)
        seconds = "" if ticks.denominator == 1 else ticks.denominator
        return f"{ticks.numerator}/{seconds}s"
    return text
