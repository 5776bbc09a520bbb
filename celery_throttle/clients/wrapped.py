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
from celery_throttle.limiter.handles import LimitHandles
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.requirement import CallFunction
from celery_throttle.store.steps import arun_steps, run_steps

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
    retry_refused: int = 0,
) -> F:
    """Return a function that acquires one or more limits before each call of another function.

    Use it for the SDK of an API. A call raises :class:`~celery_throttle.Throttled` if the limits do
    not allow it in time. In a task that a worker runs, the error makes the task join its line.

    Args:
        limit: A handle such as ``throttle["openai"]``, or a list of handles of one limiter. All of
            these limits must allow a call.
        function: A function, or coroutine function, that calls an API.
        key: A function of the call's arguments that returns the key, for handles without a key.
        cost: Units, or a dict of units by the name of the limit, or a function of the call's
            arguments that returns either; default 1.
        max_wait: The most seconds that a call waits for the limits; default 0.
        usage: A function of the result that returns its actual cost, such as tokens or bytes, in
            the forms of ``cost``. Then ``cost`` is an estimate.
        refused: The types of exceptions that mean that the API refused the call. Such an exception
            stops the limits for all clients. ``Retry-After`` is read from
            ``error.response.headers`` or ``error.headers``. Or a function of an exception that
            returns a :class:`~celery_throttle.Feedback`, or None. Default: none.
        retry_refused: How many times to call the function again after such an exception, with the
            same arguments. Each further call waits until the stop ends, and takes units again. In a
            task that a worker runs, the task joins its line instead, at most this many times in all
            its runs. Default 0.

    Raises:
        LimitError: An argument is invalid.

    Example:
        >>> from celery_throttle import Limiter
        >>> limiter = Limiter("memory://", {"stripe": "100/s burst 20"})
        >>> charge = wrap(limiter["stripe"], lambda amount: f"charged {amount}")
        >>> charge(42)
        'charged 42'
    """
    guard = Guard(
        limit, key=key, cost=cost, max_wait=max_wait, usage=usage, retry_refused=retry_refused
    )
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
