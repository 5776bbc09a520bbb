"""The limits of a client or of a web app: one handle, or several of one limiter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter.handle import LimitHandle

#: A handle such as ``limiter["stripe"]``, or a sequence of handles of one limiter.
LimitHandles = LimitHandle | Sequence[LimitHandle]


def check_handles(limits: LimitHandles) -> list[LimitHandle]:
    """Return the handles as a list; LimitValueError unless there are some, all of one limiter."""
    several = isinstance(limits, Sequence) and not isinstance(limits, (str, bytes))
    handles: list[Any] = list(limits) if several else [limits]  # type: ignore[arg-type]  # checked below
    if not handles:
        raise LimitValueError("no limit is given; allowed: one, or a list of them")
    for handle in handles:
        if not isinstance(handle, LimitHandle):
            why = ", as a text does not say which limiter has it" if isinstance(handle, str) else ""
            raise LimitValueError(
                f"{shown(handle)} is not a limit of a limiter{why}; allowed: such as "
                "throttle['name'], or a list of them"
            )
        if handle.limiter is not handles[0].limiter:
            raise LimitValueError(
                f"{handle.ref.name!r} is of another limiter than {handles[0].ref.name!r}; allowed: "
                "limits of one"
            )
    handles[0].limiter.check_together(handle.ref for handle in handles)
    return handles
