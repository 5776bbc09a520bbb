"""Functions that users give for the limits, keys and costs of requests, in clients and web apps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import Any

from celery_throttle.errors import LimitFunctionError, function_name
from celery_throttle.store.steps import Step, Steps


def call_function(
    function: Callable[..., Any], option: str, *args: Any, **kwargs: Any
) -> Steps[Any]:
    """Return what a function returns; of an async function, what it returns in the end.

    ``option``: the argument whose value the function is. What the function raises is raised.

    Raises (by the steps):
        LimitFunctionError: the function is async, and its caller blocks.
    """
    result = function(*args, **kwargs)
    if isawaitable(result):
        result = yield Step(partial(_refuse, result, function, option), lambda: result)
    return result


def _refuse(awaitable: Awaitable[Any], function: Callable[..., Any], option: str) -> None:
    if iscoroutine(awaitable):
        awaitable.close()
    raise LimitFunctionError(
        f"{function_text(function, option)} is async, but its caller blocks; allowed: a plain "
        "function"
    )


def without_none(limits: Any) -> Any:
    """Return the limits that a function has returned, without None; None if there are none."""
    if isinstance(limits, Mapping):
        pairs = ((quantity, without_none(each)) for quantity, each in limits.items())
        return {quantity: each for quantity, each in pairs if each is not None} or None
    if isinstance(limits, (list, tuple)):
        return [each for each in limits if each is not None] or None
    return limits


def function_text(function: Callable[..., Any], option: str) -> str:
    """Return what names a function in messages; ``option``: the argument that it is given for."""
    return f"the {option} function {function_name(function)!r}"
