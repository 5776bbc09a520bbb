"""Guarded functions: any function that calls an API, such as a method of an SDK."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from http import HTTPStatus
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NamedTuple, TypeVar, cast

from celery_throttle.clients import response_headers
from celery_throttle.clients.guard import CallCost, Guard
from celery_throttle.clients.guarded_call import Exchange, call_steps
from celery_throttle.clients.http import to_feedback
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import CallFunction
from celery_throttle.steps import arun_steps, run_steps

F = TypeVar("F", bound=Callable[..., Any])

#: The type of ``refused``. It is one or more types of exceptions that mean that the API refused a
#: call, or a function of an exception that returns a :class:`~celery_throttle.Feedback`, or None.
Refused = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], Feedback | None]

#: Returns the feedback of an exception, or None. The float: seconds since the call began.
ErrorReader = Callable[[Exception, float], Feedback | None]


def wrap(
    limit: LimitHandles,
    function: F,
    *,
    key: CallFunction | None = None,
    cost: CallCost | None = None,
    max_wait: float = 0.0,
    usage: Callable[[Any], Any] | None = None,
    refused: Refused = (),
    retry_429: int = 0,
) -> F:
    """Return a function that acquires one or more limits before each call of another function.

    For one limit, :meth:`LimitHandle.wrap() <celery_throttle.handle.LimitHandle.wrap>` does the
    same.

    Args:
        limit: A handle such as ``throttle["openai"]``, or a list of handles of one limiter. All of
            these limits must allow a call.
        function: See :meth:`~celery_throttle.handle.LimitHandle.wrap`.
        key: As for ``LimitHandle.wrap()``.
        cost: As for ``LimitHandle.wrap()``, or a dict of units by the name of the limit, or a
            function that returns one.
        max_wait: As for ``LimitHandle.wrap()``.
        usage: As for ``LimitHandle.wrap()``; the function may return such a dict.
        refused: As for ``LimitHandle.wrap()``.
        retry_429: As for ``LimitHandle.wrap()``.

    Raises:
        LimitError: An argument is invalid.

    Example:
        ::

            chat = wrap(
                [throttle["openai-requests"], throttle["openai-tokens"]],
                client.chat.completions.create,
                cost=lambda **call: {"openai-tokens": call["max_tokens"]},
                refused=openai.RateLimitError,
            )
    """
    guard = Guard(limit, key=key, cost=cost, max_wait=max_wait, usage=usage, retry_429=retry_429)
    if not callable(function):
        raise LimitValueError(f"a function to wrap must be callable, not {shown(function)}")
    read_error = _error_reader(refused)

    def exchange(*args: Any, **kwargs: Any) -> _FunctionExchange:
        return _FunctionExchange(partial(function, *args, **kwargs), read_error)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        steps = call_steps(guard, exchange(*args, **kwargs), *args, **kwargs)
        return _unwrap(run_steps(steps))

    @wraps(function)
    async def awrapped(*args: Any, **kwargs: Any) -> Any:
        steps = call_steps(guard, exchange(*args, **kwargs), *args, **kwargs)
        return _unwrap(await arun_steps(steps))

    return cast("F", awrapped if iscoroutinefunction(function) else wrapped)


class _Outcome(NamedTuple):
    """What a function returned, or raised."""

    value: Any
    error: Exception | None = None


def _unwrap(outcome: _Outcome | Awaitable[_Outcome]) -> Any:
    """Return the value or raise the error; if the function is asynchronous after all, later."""
    if not isinstance(outcome, _Outcome):
        return _unwrap_later(outcome)
    try:
        if outcome.error is not None:
            raise outcome.error
        return outcome.value
    finally:
        del outcome  # or the traceback of the error would refer to the error


async def _unwrap_later(outcome: Awaitable[_Outcome]) -> Any:
    return _unwrap(await outcome)


class _FunctionExchange(Exchange[_Outcome]):
    def __init__(self, call: Callable[[], Any], read_error: ErrorReader) -> None:
        self._call = call
        self._read_error = read_error

    def send(self) -> Any:
        try:
            value = self._call()
        except Exception as error:  # noqa: BLE001  # _unwrap() raises it
            return _Outcome(None, error)
        return self._finish(value) if isawaitable(value) else _Outcome(value)

    @staticmethod
    async def _finish(value: Awaitable[Any]) -> _Outcome:
        try:
            return _Outcome(await value)
        except Exception as error:  # noqa: BLE001  # likewise
            return _Outcome(None, error)

    def feedback(self, response: _Outcome, seconds: float) -> Feedback | None:
        if response.error is not None:
            return self._read_error(response.error, seconds)
        return Feedback(took=seconds)

    def payload(self, response: _Outcome) -> Any:
        return response.value


def _error_reader(refused: Refused) -> ErrorReader:
    if isinstance(refused, (type, tuple)):
        types = refused
        return lambda error, seconds: _refusal(error, seconds) if isinstance(error, types) else None
    if not callable(refused):
        raise LimitValueError(
            f"refused must be exception types, or a function of an exception, not {shown(refused)}"
        )
    return lambda error, _: refused(error)


def _refusal(error: Exception, seconds: float) -> Feedback:
    """Return the feedback of a refusal, from the headers where SDKs keep them."""
    headers = getattr(getattr(error, "response", error), "headers", None)
    try:
        info = response_headers.read(HTTPStatus.TOO_MANY_REQUESTS, headers or {}, time.time())
    except (AttributeError, TypeError):  # an attribute of this name that is no mapping
        return Feedback(refused=True, took=seconds)
    return to_feedback(info, {}, seconds)
