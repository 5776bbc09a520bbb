"""Calls of language models at the same time in one event loop, without Celery.

``python -m benchmarks.apps.llm_loop JOB`` prints the number of failed calls, and the longest time
in seconds for which the loop stood still, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import anthropic
import openai

from benchmarks.vendors import send
from celery_throttle import Limiter, throttled

#: Seconds that a call waits for its limits at most.
MAX_WAIT_SECONDS = 600.0
TICK_SECONDS = 0.01


async def _watch() -> float:
    """Return the longest delay of a tick, once this task is cancelled."""
    longest = 0.0
    try:
        while True:
            began = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            longest = max(longest, time.monotonic() - began - TICK_SECONDS)
    except asyncio.CancelledError:
        return longest


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    limiter = Limiter(job["store"], job["limits"])
    limits = {name: limiter[name] for name in job["limits"]}
    plain: Any
    if job["sdk"] == "openai":
        plain = openai.AsyncOpenAI(api_key="x", base_url=f"{job['url']}/v1")
    else:
        plain = anthropic.AsyncAnthropic(api_key="x", base_url=job["url"])
    client = throttled(plain, limits, max_wait=MAX_WAIT_SECONDS)

    watch = asyncio.create_task(_watch())
    await asyncio.sleep(0)
    calls = (send(client, job["sdk"], tokens) for tokens in job["sizes"])
    ended = await asyncio.gather(*calls, return_exceptions=True)
    watch.cancel()
    errors = Counter(repr(one) for one in ended if isinstance(one, BaseException))
    await limiter.store.aclose()
    return {
        "failed": errors.total(),
        "stood": await watch,
        "errors": dict(errors.most_common(3)),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(json.loads(sys.argv[1])))))
