"""Reservations as context managers: an error refunds, and one that nothing settles is reported."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest

from celery_throttle import Limiter, LimitError, ThrottleError

LIMITS = {"tokens": "1000/d burst 100", "requests": "1000/d burst 10"}


def in_use(limiter: Limiter, name: str = "tokens") -> int:
    burst = int(LIMITS[name].split()[-1])
    return burst - limiter[name].peek(0).remaining


def forgotten(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


def test_a_reservation_is_settled_inside_its_with(
    limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter["tokens"].reserve(50) as reservation:
        assert reservation.decision.remaining == 50
        assert in_use(limiter) == 50
        reservation.settle(20)
    assert in_use(limiter) == 20
    assert forgotten(caplog) == []


def test_an_error_refunds_a_reservation(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        limiter.reserve(["tokens", "requests"], {"tokens": 50}),
    ):
        raise ZeroDivisionError
    assert (in_use(limiter), in_use(limiter, "requests")) == (0, 0)
    assert forgotten(caplog) == []


@pytest.mark.parametrize("actual", [-1, "many", {"requests": 1}])
def test_an_actual_cost_that_is_wrong_settles_nothing(limiter: Limiter, actual: Any) -> None:
    reservation = limiter["tokens"].reserve(50)
    with pytest.raises(LimitError):
        reservation.settle(actual)
    reservation.settle(20)
    assert in_use(limiter) == 20
    with pytest.raises(LimitError), limiter["tokens"].reserve(50) as reservation:
        reservation.settle(actual)
    assert in_use(limiter) == 20


def test_an_error_is_raised_though_its_limit_is_undefined_meanwhile(redis_url: str) -> None:
    limiter = Limiter(redis_url)

    def fail() -> None:
        limiter["own"].define("100/d burst 100")
        with limiter["own"].reserve(5):
            limiter["own"].undefine()
            raise ZeroDivisionError

    async def afail() -> None:
        await asyncio.to_thread(limiter["own"].define, "100/d burst 100")
        async with await limiter["own"].areserve(5):
            await asyncio.to_thread(limiter["own"].undefine)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(afail())
    limiter.store.close()


def test_an_error_after_the_settlement_refunds_nothing(limiter: Limiter) -> None:
    def fail_late() -> None:
        with limiter["tokens"].reserve(50) as reservation:
            reservation.settle(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert in_use(limiter) == 30


def test_asyncio_refunds_what_a_cancelled_task_reserved(redis_url: str) -> None:
    async def call(limiter: Limiter, begun: asyncio.Event) -> None:
        async with await limiter["tokens"].areserve(50):
            begun.set()
            await asyncio.Event().wait()

    async def run() -> tuple[int, int]:
        limiter, begun = Limiter(redis_url, LIMITS), asyncio.Event()
        async with await limiter["tokens"].areserve(10) as reservation:
            await reservation.asettle(5)
        task = asyncio.create_task(call(limiter, begun))
        await begun.wait()
        during = (await limiter["tokens"].apeek(0)).remaining
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = (await limiter["tokens"].apeek(0)).remaining
        await limiter.store.aclose()
        return during, after

    assert asyncio.run(run()) == (45, 95)


def test_a_with_that_settles_nothing_is_reported_and_keeps_the_estimate(
    limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    with limiter["tokens"].reserve(50) as reservation:
        pass
    [text] = forgotten(caplog)
    assert text.startswith("A reservation of limit 'tokens' was not settled: its estimate counts")
    assert in_use(limiter) == 50
    with pytest.raises(ThrottleError, match=r"this reservation has ended: settle\(\) is called"):
        reservation.settle(1)


def test_a_forgotten_reservation_is_reported_once_for_each_limit(
    limiter: Limiter, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        limiter["tokens"].reserve(5)
    limiter.reserve(["tokens", "requests"], 1)
    texts = forgotten(caplog)
    assert [text.split("'")[1] for text in texts] == ["tokens", "requests"]
    assert (in_use(limiter), in_use(limiter, "requests")) == (16, 1)
