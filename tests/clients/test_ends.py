"""The end of a guarded call: whatever happens, the slot is released and the estimate settled."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from celery_throttle import Limiter
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from tests.clients.api import Answer, Api

LIMITS = {"tokens": "1000/d burst 1000", "pool": "2 at once"}


def used(limiter: Limiter) -> tuple[int, int]:
    """Tokens and slots in use."""
    return 1000 - limiter["tokens"].peek(0).remaining, 2 - limiter["pool"].peek(0).remaining


@pytest.mark.parametrize("answer", [Answer(), Answer(204, {}, b""), Answer(body=b"x" * 300_000)])
def test_a_response_of_aiohttp_that_nobody_reads_releases_its_slot(
    api: Api, limiter: Limiter, answer: Answer
) -> None:
    async def main() -> None:
        api.answers = [answer]
        middleware = ThrottledMiddleware(limiter["pool"])
        async with aiohttp.ClientSession(middlewares=[middleware]) as session:
            async with session.get(api.url) as response:
                assert response.status == answer.status
            for _ in range(100):
                if used(limiter)[1] == 0:
                    break
                await asyncio.sleep(0.02)
        await limiter.store.aclose()

    asyncio.run(main())
    assert used(limiter)[1] == 0
