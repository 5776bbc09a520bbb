"""A blocking call in a running event loop: without a wait it runs, and with one it is an error."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_throttle import BlockingWaitError, Limiter, Throttled
from celery_throttle.testing import ManualClock

LIMITS = {
    "api": "1/h burst 10",
    "pool": "1 at once",
    "queue": "10/s burst 5 using leaky-queue",
}

WAITS: dict[str, Callable[[Limiter], Any]] = {
    "acquire": lambda limiter: limiter["api"].acquire(max_wait=5),
    "acquire of several": lambda limiter: limiter.acquire(["api", "queue"], max_wait=5),
    "try_acquire": lambda limiter: limiter["api"].try_acquire(max_wait=5),
    "reserve": lambda limiter: limiter["api"].reserve(3, max_wait=5),
    "slot": lambda limiter: limiter["pool"].slot(max_wait=5).__enter__(),
    "leaky-queue": lambda limiter: limiter["queue"].acquire(max_wait=5),
}


@pytest.fixture(params=["server", "memory", "clock"])
def limiter(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Limiter]:
    url = redis_url if request.param == "server" else "memory://"
    clock = ManualClock() if request.param == "clock" else None
    limiter = Limiter(url, LIMITS, clock=clock)
    yield limiter
    limiter.store.close()


def in_loop(call: Callable[[], Any]) -> Any:
    async def main() -> Any:
        return call()

    return asyncio.run(main())


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_a_call_that_may_wait_takes_nothing(
    limiter: Limiter, call: Callable[[Limiter], Any]
) -> None:
    with pytest.raises(BlockingWaitError, match=r"aacquire, .*'async with' for a slot.*to_thread"):
        in_loop(lambda: call(limiter))
    assert limiter["api"].peek(10)
    assert limiter["pool"].peek()
    assert limiter["queue"].peek(5)


@pytest.mark.parametrize("call", WAITS.values(), ids=WAITS)
def test_it_may_wait_in_a_thread(limiter: Limiter, call: Callable[[Limiter], Any]) -> None:
    async def main() -> Any:
        return await asyncio.to_thread(call, limiter)

    assert asyncio.run(main())


def test_a_call_that_never_waits_runs(limiter: Limiter) -> None:
    def calls() -> None:
        limiter["api"].acquire()
        limiter["api"].reserve(3).settle(2)
        with limiter["pool"].slot():
            assert not limiter["pool"].peek()
        with pytest.raises(Throttled):
            limiter["api"].acquire(8)
        assert limiter["queue"].try_acquire(max_wait=None).delay == 0

    in_loop(calls)
    assert limiter["api"].peek().remaining == 7


def test_a_slot_whose_with_was_refused_can_be_used_with_async(limiter: Limiter) -> None:
    slot = limiter["pool"].slot(max_wait=5)

    async def main() -> None:
        with pytest.raises(BlockingWaitError), slot:
            pass
        async with slot:
            assert not await limiter["pool"].apeek()
        await limiter.store.aclose()

    asyncio.run(main())
    assert limiter["pool"].peek()


def test_celery_can_build_the_error_again(limiter: Limiter) -> None:
    with pytest.raises(BlockingWaitError) as caught:
        in_loop(lambda: limiter["api"].acquire(max_wait=1))
    again = copy.copy(caught.value)
    assert (type(again), again.args) == (BlockingWaitError, caught.value.args)
