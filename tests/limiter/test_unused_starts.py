"""Starts that are booked ahead, and whose callers do not come: they are given back."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_throttle import Limiter
from tests.shards import stores_of

LIMITS = {
    "queue": "1/m burst 30 using leaky-queue",
    "calls": "1000/d burst 100",
    "pool": "5 at once",
}

CALLS: dict[str, Callable[[Limiter], Any]] = {
    "acquire": lambda limiter: limiter["queue"].acquire(max_wait=600),
    "try_acquire": lambda limiter: limiter["queue"].try_acquire(max_wait=600),
    "reserve": lambda limiter: limiter.reserve(["queue", "calls"], 1, max_wait=600),
    "slot": lambda limiter: limiter.slot(["queue", "calls", "pool"], max_wait=600).__enter__(),
}

ASYNC_CALLS: dict[str, Callable[[Limiter], Any]] = {
    "acquire": lambda limiter: limiter["queue"].aacquire(max_wait=600),
    "try_acquire": lambda limiter: limiter["queue"].atry_acquire(max_wait=600),
    "reserve": lambda limiter: limiter.areserve(["queue", "calls"], 1, max_wait=600),
    "slot": lambda limiter: limiter.slot(["queue", "calls", "pool"], max_wait=600).__aenter__(),
}


@pytest.fixture(params=["server", "shards", "memory"])
def unused(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Limiter]:
    """A limiter whose queue grants the next start in a minute."""
    url = "memory://" if request.param == "memory" else redis_url
    shards = {"own": {"limits": [*LIMITS]}} if request.param == "shards" else None
    limiter = Limiter(url, LIMITS, shards=shards)
    limiter["queue"].acquire()
    yield limiter
    for store in stores_of(limiter):
        store.close()


def left(limiter: Limiter) -> list[int]:
    return [limiter[name].peek(0).remaining for name in LIMITS]


class Interrupt(BaseException):
    """What the handler of a signal raises, as that of Ctrl-C does."""


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Interrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.thorough
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_start_is_given_back_if_a_signal_ends_the_wait(
    unused: Limiter, call: Callable[[Limiter], Any]
) -> None:
    with interrupted(0.3):
        call(unused)
    assert left(unused) == [29, 100, 5]


@pytest.mark.thorough
@pytest.mark.parametrize("call", ASYNC_CALLS.values(), ids=ASYNC_CALLS)
def test_a_start_is_given_back_if_the_wait_is_cancelled(
    unused: Limiter, call: Callable[[Limiter], Any]
) -> None:
    async def run() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call(unused), 0.3)
        for store in stores_of(unused):
            await store.aclose()

    asyncio.run(run())
    assert left(unused) == [29, 100, 5]


@pytest.mark.thorough
@pytest.mark.parametrize("call", ASYNC_CALLS.values(), ids=ASYNC_CALLS)
def test_a_wait_that_is_forgotten_with_its_loop_ends_without_an_error(
    unused: Limiter, call: Callable[[Limiter], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)
    waiting = call(unused)
    loop = asyncio.new_event_loop()
    task = loop.create_task(waiting)
    loop.run_until_complete(asyncio.sleep(0.3))
    waiting.close()
    del waiting, task
    gc.collect()
    for store in stores_of(unused):
        loop.run_until_complete(store.aclose())
    loop.close()
    assert [str(error.exc_value) for error in errors] == []
