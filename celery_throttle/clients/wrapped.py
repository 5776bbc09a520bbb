"""Guarded functions: any function that calls an API, such as a method of an SDK."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from dataclasses import dataclass
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction, unwrap
from typing import TYPE_CHECKING, Any, TypeVar, cast

from celery_throttle.clients.answer import ApiAnswer, of_error
from celery_throttle.clients.calls.call import Exchange, GuardedCall, call_steps
from celery_throttle.clients.calls.guard import CallCost, Guard, GuardedLimits, Usage
from celery_throttle.clients.profiles.generic import GENERIC
from celery_throttle.clients.profiles.profile import Profile
from celery_throttle.errors import LimitValueError, shown
from celery_throttle.store.steps import arun_steps, run_steps

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11

F = TypeVar("F", bound=Callable[..., Any])

#: Returns the answer that a result, or an exception, stands for; None if it says nothing.
ReadAnswer = Callable[[Any], ApiAnswer | None]


def wrap(
    limits: GuardedLimits,
    function: F,
    *,
    profile: Profile = GENERIC,
    cost: CallCost | None = None,
    usage: Usage | None = None,
    max_wait: float = 0.0,
    answer: ReadAnswer | None = None,
    retry_refused: int = 0,
    is_async: bool | None = None,
) -> F:
    """Return a function that acquires one or more limits before each call of another function.

    Use it for an SDK that :func:`~celery_throttle.clients.sdk.throttled` does not know. A call
    raises :class:`~celery_throttle.Throttled` if the limits do not allow it in time. In a task that
    a worker runs, the error makes the task join its line.

    A call ends when the function returns, and then releases its slots. If the function returns an
    iterator, such as the stream of an SDK, the call ends when the iterator does, or is closed. If
    the function returns an awaitable, the call ends when that has been awaited, or, if
    ``async with`` can enter it, such as what ``aiohttp.ClientSession.get`` returns, at the end of
    the ``async with``. If nothing refers to the iterator or the awaitable any more, the slots of
    the call are free within 30 seconds.

    Args:
        limits: A handle such as ``throttle["mail"]``, or a list of handles of one limiter. Or a
            dict of such limits by the quantity that they count, such as ``{"requests": ...,
            "tokens": ...}``. Or a function of the call's arguments that returns one of these, or
            None for no limit: ``lambda tenant, text: throttle["mail", tenant]``. All limits must
            allow a call.
        function: A function, or coroutine function, that calls an API.
        profile: What the vendor documents. Default: what many APIs share.
        cost: Units for each limit, or a dict of units by quantity, or a function of the call's
            arguments that returns either; default 1. Where the calls are awaited, this function,
            and that of ``limits``, may be async.
        usage: A function of the result that returns its actual cost, such as tokens or bytes, in
            the forms of ``cost``, which is then an estimate. Of an iterator, it gets each item, and
            returns ``{}`` for those that do not tell the cost.
        max_wait: The most seconds that a call waits for the limits; default 0.
        answer: A function of the result, or of the exception, that returns the
            :class:`~celery_throttle.clients.answer.ApiAnswer` that it stands for, or None. Default:
            the status, the headers and the body of an exception are read where SDKs keep them.
        retry_refused: How many times to call the function again after a refusal, with the same
            arguments. Each further call waits until the limits go on, and takes units again. In a
            task that a worker runs, the task joins its line instead, at most this many times in all
            its runs. A refusal that an iterator raises is the caller's. Default 0.
        is_async: Whether the function returns awaitables. Default: whether it is a coroutine
            function, or wraps one. A call of any other function, such as a lambda, or a method of
            an ``aiohttp.ClientSession``, blocks until its limits allow it: with ``max_wait``, it
            raises :class:`~celery_throttle.BlockingWaitError` in a running event loop.

    Raises:
        LimitError: An argument is invalid.

    Example:
        >>> from celery_throttle import Limiter
        >>> limiter = Limiter("memory://", {"stripe": "100/s burst 20"})
        >>> charge = wrap(limiter["stripe"], lambda amount: f"charged {amount}")
        >>> charge(42)
        'charged 42'
    """
    guard = Guard(limits, profile, cost, usage, max_wait, retry_refused)
    if not callable(function):
        raise LimitValueError(f"a function to wrap must be callable, not {shown(function)}")
    if answer is not None and not callable(answer):
        raise LimitValueError(f"answer must be callable, not {shown(answer)}")
    read = answer or _answer_of

    # SDKs check arguments in decorators, before a coroutine begins.
    innermost = unwrap(getattr(function, "__func__", function))
    is_coroutine = iscoroutinefunction(function) or iscoroutinefunction(innermost)
    waits = is_coroutine if is_async is None else is_async

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        exchange = _FunctionExchange(partial(function, *args, **kwargs), read)
        steps = call_steps(guard, exchange, *args, **kwargs)
        outcome: Any = arun_steps(steps) if waits else run_steps(steps)
        return _value(outcome) if isinstance(outcome, _Outcome) else _Awaitable(exchange, outcome)

    @wraps(function)
    async def awrapped(*args: Any, **kwargs: Any) -> Any:
        return await wrapped(*args, **kwargs)

    return cast("F", awrapped if is_coroutine and waits else wrapped)


def _answer_of(outcome: Any) -> ApiAnswer | None:
    return of_error(outcome) if isinstance(outcome, Exception) else None


@dataclass(slots=True)
class _Outcome:
    """What a function returned, or raised."""

    value: Any
    error: Exception | None = None


def _value(outcome: _Outcome) -> Any:
    """Return the value or raise the error."""
    try:
        if outcome.error is not None:
            raise outcome.error
        return outcome.value
    finally:
        del outcome  # or the traceback of the error would refer to the error


class _FunctionExchange(Exchange[_Outcome]):
    #: Whether ``async with`` enters what the function returns, in place of an ``await``.
    is_entered = False

    def __init__(self, call: Callable[[], Any], read: ReadAnswer) -> None:
        self._call = call
        self._read = read
        self._entered: Any = None
        self._watching: GuardedCall[_Outcome] | None = None

    def send(self) -> Any:
        try:
            value = self._call()
        except Exception as error:  # noqa: BLE001  # _value() raises it
            return _Outcome(None, error)
        return self._finish(value) if isawaitable(value) else _Outcome(value)

    async def _finish(self, value: Any) -> _Outcome:
        try:
            if not self.is_entered:
                return _Outcome(await value)
            await self.exit(None, None, None)  # that of the attempt before
            result = await value.__aenter__()
            self._entered = value
            return _Outcome(result)
        except Exception as error:  # noqa: BLE001  # likewise
            return _Outcome(None, error)

    def answer(self, response: _Outcome) -> ApiAnswer | None:
        outcome = response.value if response.error is None else response.error
        found = self._read(outcome)
        if found is None and response.error is not None:
            return ApiAnswer(None)  # it failed, and says no more
        return found

    def may_end_in_error(self, response: _Outcome) -> bool:
        # Others, such as files and streams of SDKs, stay as they are if nothing else waits.
        return isinstance(response.value, (Generator, AsyncGenerator))

    def read_error(self, error: Exception) -> ApiAnswer | None:
        return self._read(error)

    async def exit(self, *error: object) -> Any:
        """Exit what was entered, and end the call."""
        entered, self._entered = self._entered, None
        call, self._watching = self._watching, None
        try:
            return None if entered is None else await entered.__aexit__(*error)
        finally:
            if call is not None:
                await call.aend()

    def close(self, response: _Outcome) -> Any:  # noqa: ARG002  # as in the base
        return None if self._entered is None else self.exit(None, None, None)

    def watch(self, response: _Outcome, call: GuardedCall[_Outcome]) -> bool:
        """Watch the items of an iterator; of any other result, read the usage at once."""
        value = response.value
        self._watching = call
        if isinstance(value, (Iterator, AsyncIterator)):
            kind = PassingItems if isinstance(value, Iterator) else AsyncPassingItems
            response.value = kind(value, call)
            return True
        if response.error is None:
            call.read(value)
        return self._entered is not None


class _Awaitable(Coroutine[Any, Any, Any]):
    """An asynchronous call: it is awaited once, or entered, if what the function returns can be."""

    def __init__(self, exchange: _FunctionExchange, outcome: Awaitable[_Outcome]) -> None:
        async def value() -> Any:
            return _value(await outcome)

        self._exchange = exchange
        self._value = value()

    def send(self, value: Any) -> Any:
        return self._value.send(value)

    def throw(self, *error: Any) -> Any:
        return self._value.throw(*error)

    def close(self) -> None:
        self._value.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._value.__await__()

    async def __aenter__(self) -> Any:
        self._exchange.is_entered = True
        return await self._value

    async def __aexit__(self, *error: object) -> Any:
        return await self._exchange.exit(*error)


class PassingItems:
    """An iterator whose items a call watches. Otherwise it is as it was."""

    def __init__(self, items: Any, call: GuardedCall[Any]) -> None:
        self._items = items
        self._call = call

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._items, name)
        if name in {"send", "throw"}:  # of a generator
            return partial(self._pass, member)
        return partial(self._end, member) if name == "cancel" else member

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._pass(self._items.__next__)

    def _pass(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            item = method(*args)
        except BaseException as error:
            self._call.end(_failure(error))
            raise
        self._call.read(item)
        return item

    def close(self) -> Any:
        """Close the iterator, if it can be closed, and end the call."""
        return self._end(getattr(self._items, "close", lambda: None))

    def __enter__(self) -> Self:
        self._items.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._end(self._items.__exit__, *error)

    def _end(self, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        finally:
            self._call.end()


class AsyncPassingItems:
    """The asyncio twin of :class:`PassingItems`."""

    def __init__(self, items: Any, call: GuardedCall[Any]) -> None:
        self._items = items
        self._call = call

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._items, name)
        if name in {"asend", "athrow"}:  # of a generator
            return partial(self._pass, member)
        is_end = name == "aclose" or (name == "close" and iscoroutinefunction(member))
        return partial(self._end, member) if is_end else member

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return await self._pass(self._items.__anext__)

    async def _pass(self, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        try:
            item = await method(*args)
        except BaseException as error:
            await self._call.aend(_failure(error))
            raise
        self._call.read(item)
        return item

    async def __aenter__(self) -> Self:
        await self._items.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._end(self._items.__aexit__, *error)

    async def _end(self, method: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        try:
            return await method(*args)
        finally:
            await self._call.aend()


def _failure(error: BaseException) -> Exception | None:
    """Return an error, unless it is the end of an iterator or of its caller."""
    is_end = isinstance(error, (StopIteration, StopAsyncIteration))
    return error if isinstance(error, Exception) and not is_end else None
