"""Any callable that calls an API, such as a method of an SDK: with limits around it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from http import HTTPStatus
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar, cast

from celery_throttle.clients import answers
from celery_throttle.clients.guarded_call import Outbound, Passage
from celery_throttle.clients.http import heard_of
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.limiter_core import LimitHandles
from celery_throttle.limits.feedback import Heard

F = TypeVar("F", bound=Callable[..., Any])

#: Types of exceptions that are refusals; or a function that tells what one says, if anything.
Refused = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], Heard | None]

Reader = Callable[[Exception, Passage], Heard | None]


def wrap(
    limit: LimitHandles,
    function: F,
    *,
    key: Callable[..., Any] | None = None,
    cost: Any = None,
    max_wait: float = 0.0,
    usage: Callable[[Any], Any] | None = None,
    refused: Refused = (),
    retry_429: int = 0,
) -> F:
    """See :meth:`celery_throttle.handle.LimitHandle.wrap`."""
    outbound = Outbound(
        limit, key=key, cost=cost, max_wait=max_wait, usage=usage, retry_429=retry_429
    )
    if not callable(function):
        raise LimitValueError(f"{shown(function)} cannot be wrapped; allowed: what can be called")
    reader = _reader(refused)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        passage = outbound.passage(*args, **kwargs)
        passage.begin()
        while True:
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                following = _after(error, passage, reader)
                if following is None:
                    raise
                passage = following
                continue
            except BaseException:
                passage.end()
                raise
            if isawaitable(result):  # it is a coroutine function, and does not look like one
                return _finished(partial(function, *args, **kwargs), passage, reader, result)
            try:
                passage.answered(Heard(took=passage.took()), result)
            finally:
                passage.end()
            return result

    @wraps(function)
    async def awrapped(*args: Any, **kwargs: Any) -> Any:
        passage = outbound.passage(*args, **kwargs)
        await passage.abegin()
        return await _finished(partial(function, *args, **kwargs), passage, reader)

    return cast("F", awrapped if iscoroutinefunction(function) else wrapped)


async def _finished(
    call: Callable[[], Awaitable[Any]],
    passage: Passage,
    reader: Reader,
    begun: Awaitable[Any] | None = None,
) -> Any:
    """Await a call, which may have begun, and tell its limits of it."""
    while True:
        try:
            work, begun = begun, None
            result = await (call() if work is None else work)
        except Exception as error:
            following = await _aafter(error, passage, reader)
            if following is None:
                raise
            passage = following
            continue
        except BaseException:
            await passage.aend()
            raise
        try:
            await passage.aanswered(Heard(took=passage.took()), result)
        finally:
            await passage.aend()
        return result


def _after(error: Exception, passage: Passage, reader: Reader) -> Passage | None:
    """The next attempt, which has begun, after one that raised; None if the error is to go on."""
    try:
        heard = reader(error, passage)
        if heard is not None:
            passage.answered(heard, None)
    finally:
        passage.end()
    if heard is None or not passage.may_go_again(heard):
        return None
    return passage.again(heard)


async def _aafter(error: Exception, passage: Passage, reader: Reader) -> Passage | None:
    """:func:`_after` for asyncio."""
    try:
        heard = reader(error, passage)
        if heard is not None:
            await passage.aanswered(heard, None)
    finally:
        await passage.aend()
    if heard is None or not passage.may_go_again(heard):
        return None
    return await passage.aagain(heard)


def _reader(refused: Refused) -> Reader:
    if isinstance(refused, (type, tuple)):
        types = refused

        def by_type(error: Exception, passage: Passage) -> Heard | None:
            return _heard(error, passage) if isinstance(error, types) else None

        return by_type
    if not callable(refused):
        raise LimitValueError(
            f"refused {shown(refused)} is not allowed: exceptions, or a function of one"
        )
    return lambda error, _: refused(error)


def _heard(error: Exception, passage: Passage) -> Heard:
    """Of a refusal: what its headers say, where SDKs put them."""
    headers = getattr(getattr(error, "response", error), "headers", None)
    try:
        said = answers.read(HTTPStatus.TOO_MANY_REQUESTS, headers or {}, time.time())
    except (AttributeError, TypeError):  # something else has this name
        return Heard(refused=True, took=passage.took())
    return heard_of(said, {}, passage.took())
