"""Tasks that call a language model: once, six times one after the other, eight times at once."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any

import openai
import redis
from celery import Celery

from celery_throttle import Throttle, throttled

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")

app = Celery("agents", broker=BROKER, backend=BROKER, set_as_current=False)
throttle = Throttle(
    app,
    limits={
        "rpm": "20/s burst 2",
        "tpm": "20000/h burst 3000",
        "paused": "1000/s",
        "learned": "adaptive 1..6 at once",
    },
)


def options(url: str) -> dict[str, Any]:
    return {"base_url": f"{url}/v1", "api_key": "key", "max_retries": 0}


@cache
def by_tokens(url: str) -> openai.OpenAI:
    return throttled(openai.OpenAI(**options(url)), {"tokens": throttle["tpm"]})


@cache
def by_requests(url: str, limit: str = "rpm") -> openai.OpenAI:
    return throttled(openai.OpenAI(**options(url)), {"requests": throttle[limit]})


@cache
def by_slots(url: str) -> openai.OpenAI:
    return throttled(openai.OpenAI(**options(url)), throttle["learned"], retry_refused=9)


def question(tokens: int, **more: Any) -> dict[str, Any]:
    """A question that takes some tokens in all."""
    return {"model": "gpt", "messages": [{"role": "user", "content": f"{tokens} x"}], **more}


@app.task(shared=False)
def ask(url: str, number: int, change: int = 0) -> None:
    """Use 200 tokens of 1000; each run has another estimate than the run before."""
    runs: Any = redis.Redis.from_url(BROKER).incr(f"runs {number}")
    call = question(200, max_tokens=1000 + change * (runs - 1))
    by_tokens(url).chat.completions.create(**call)


@app.task(shared=False, throttle="learned")
def one_of_several(url: str) -> None:
    """Hold a slot of a limit that learns from the answer."""
    by_slots(url).chat.completions.create(**question(10))


@app.task(shared=False, throttle="tpm", throttle_cost=1000, throttle_settles=True)
def declare(url: str, calls: int) -> None:
    """Use 200 tokens of the declared 1000, or none."""
    for _ in range(calls):
        by_tokens(url).chat.completions.create(**question(200 // calls, max_tokens=400))


@app.task(shared=False)
def agent(url: str, calls: int = 6, limit: str = "rpm") -> None:
    for _ in range(calls):
        by_requests(url, limit).chat.completions.create(**question(1))


@app.task(shared=False)
def gather(url: str, calls: int = 8) -> None:
    async def call_all() -> None:
        async with openai.AsyncOpenAI(**options(url)) as client:
            own = throttled(client, {"requests": throttle["rpm"]})
            calls_ = (own.chat.completions.create(**question(1)) for _ in range(calls))
            await asyncio.gather(*calls_)

    asyncio.run(call_all())
    asyncio.run(throttle.store.aclose())
