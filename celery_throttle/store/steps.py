"""Steps: work that is written once for blocking callers and for asyncio.

A generator yields a :class:`Step` for everything that may block (open a connection, run a plan,
send a request) and gets back its result, or its exception. :func:`run_steps` carries the steps out
in place, :func:`arun_steps` awaits them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

#: The first and the longest wait between two attempts (seconds).
_FIRST_WAIT = 0.002
_LONGEST_WAIT = 0.1


class Step(NamedTuple):
    """One action that may block."""

    run: Callable[[], Any]  #: does it, and blocks
    arun: Callable[[], Any]  #: does it, or returns an awaitable that does
    #: Whether `run` may find out that the action is asynchronous. Then :func:`run_steps` returns a
    #: coroutine that does the rest.
    may_return_awaitable: bool = False


#: A generator of steps that returns a T.
Steps = Generator[Step, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """Carry out steps in place and return their result, or a coroutine; see :class:`Step`."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.run()
                if step.may_return_awaitable and isawaitable(result):
                    return arun_steps(steps, result)  # type: ignore[return-value]  # see Step
            except BaseException as error:  # noqa: BLE001, PERF203  # the steps handle it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is not generic


async def arun_steps(steps: Steps[T], pending: Awaitable[Any] | None = None) -> T:
    """Carry out steps in an event loop and return their result.

    If the coroutine is closed, as when its loop has ended, the current step is cancelled, and so is
    each step by which the steps would end.

    ``pending``: the result of the current step, if the steps have begun.
    """
    try:
        action = next(steps).arun if pending is None else lambda: pending
        while True:
            try:
                result = action()
                if isawaitable(result):
                    result = await result
            except GeneratorExit:  # noqa: PERF203  # one for each coroutine
                with suppress(StopIteration, asyncio.CancelledError):
                    while True:
                        steps.throw(asyncio.CancelledError())
                raise
            except BaseException as error:  # noqa: BLE001  # the steps handle it
                action = steps.throw(error).arun
            else:
                action = steps.send(result).arun
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration is not generic


def waits(seconds: float) -> Iterator[float]:
    """Yield the waits between attempts, each twice as long as the last; ``seconds``: their sum."""
    wait = _FIRST_WAIT
    while seconds > 0:
        yield min(wait, seconds)
        seconds -= wait
        wait = min(2 * wait, _LONGEST_WAIT)


async def run_to_end(begin: Callable[[], Awaitable[T]]) -> T:
    """Begin work and await its end, even if the caller is cancelled meanwhile, however often.

    If no loop runs, the caller is being closed after the end of its loop: the work does not begin.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise GeneratorExit from None
    task, cancelled = asyncio.ensure_future(begin()), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:  # noqa: PERF203  # one for each cancellation
            cancelled = error
        except BaseException:
            if not task.done():  # this coroutine is being closed, as when its loop ends
                raise
            break  # the task's own error, raised below
    if cancelled is not None:
        raise cancelled
    return task.result()


def last_step(make: Callable[[], Steps[Any]]) -> Step:
    """Return the step that carries out steps to their end, even if its caller is cancelled."""
    return Step(lambda: run_steps(make()), lambda: run_to_end(lambda: arun_steps(make())))
