"""The arguments of clients and web apps: limits, keys and costs, or functions of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

from celery_throttle.errors import (
    LimitFunctionError,
    LimitValueError,
    ThrottleError,
    function_name,
    result_error,
    shown,
)
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.store.steps import Step, Steps

T = TypeVar("T")

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


def call_function(
    function: Callable[..., Any], option: str, parse: Callable[[Any], T], *args: Any, **kwargs: Any
) -> Steps[T]:
    """Call a function, and return what ``parse`` makes of its result, which may be awaitable.

    ``option``: the argument whose value the function is. What the function raises is raised.

    Raises (by the steps):
        LimitFunctionError: the function is async, and its caller blocks; or its result is wrong.
        UnknownLimitError: its result has a limit that is not defined.
    """
    result = function(*args, **kwargs)
    if isawaitable(result):
        result = yield Step(partial(_refuse, result, function, option), lambda: result)
    try:
        return parse(result)
    except ThrottleError as error:
        raise result_error(function_text(function, option), result, error) from None


def _refuse(awaitable: Awaitable[Any], function: Callable[..., Any], option: str) -> None:
    if iscoroutine(awaitable):
        awaitable.close()
    raise LimitFunctionError(
        f"{function_text(function, option)} is async, but its caller blocks; allowed: a plain "
        "function"
    )


def parse_some(parse: Callable[[Any], T], limits: Any) -> T | None:
    """Parse the limits that a function has returned, without None; None if there are none."""
    some = _without_none(limits)
    return None if some is None else parse(some)


def _without_none(limits: Any) -> Any:
    if isinstance(limits, Mapping):
        pairs = ((quantity, _without_none(each)) for quantity, each in limits.items())
        return {quantity: each for quantity, each in pairs if each is not None} or None
    if isinstance(limits, (list, tuple)):
        return [each for each in limits if each is not None] or None
    return limits


def function_text(function: Callable[..., Any], option: str) -> str:
    """Return what names a function in messages; ``option``: the argument that it is given for."""
    return f"the {option} function {function_name(function)!r}"
