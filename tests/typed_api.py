"""The documented API as users write it. `make types` checks it with pyright; nothing runs it."""

from __future__ import annotations

from typing import Any

import aiohttp
import httpx
import requests
from celery import Celery

from celery_throttle import (
    Decision,
    Limiter,
    Throttle,
    Throttled,
    UnknownLimitError,
    task_throttled,
    wrap,
)
from celery_throttle.clients.aiohttp import ThrottledMiddleware
from celery_throttle.clients.answer import ApiAnswer
from celery_throttle.clients.httpx import AsyncThrottledTransport, ThrottledTransport
from celery_throttle.clients.profiles import OPENAI
from celery_throttle.clients.requests import ThrottledAdapter
from celery_throttle.inbound import ThrottledASGI, ThrottledWSGI, by_address, ratelimit
from celery_throttle.testing import ManualClock
from celery_throttle.web import create_app

app = Celery("shop", broker="redis://localhost/0")
throttle = Throttle(
    app,
    limits={"stripe": "100/s burst 20", "mail": ["10/m", "1000/d"], "github": "10 at once"},
    routes={"shop.reports.*": "mail"},
    lease=30,
)


@app.task
def charge(order_id: int) -> None:
    throttle["stripe"].acquire(order_id, max_wait=0)


def send(tasks: int) -> None:
    job = throttle.fan_out((charge.s(number) for number in range(tasks)), name="charges")
    print(job.progress().waiting, throttle.fan_out_named("charges").forecast().seconds)
    throttle["stripe"].drain()
    throttle["mail", 42].drop()
    throttle.check()


class RateLimitError(Exception):
    """Of an SDK."""


def create(model: str, *, max_tokens: int) -> dict[str, int]:
    return {model: max_tokens}


async def acreate(**call: Any) -> Any:
    return call


def read_answer(_: Any) -> ApiAnswer | None:
    return ApiAnswer(429, {"retry-after": "1.5"})


openai = wrap(
    lambda **call: {"tokens": throttle["stripe", call["model"]]},
    create,
    cost=lambda **call: {"tokens": call["max_tokens"]},
    usage=lambda answer: {"tokens": answer.usage.total_tokens},
    retry_refused=3,
)
tokens: dict[str, int] = openai("gpt", max_tokens=10)
query = wrap(
    throttle["stripe"],
    acreate,
    cost=lambda store, query, points: store + query + points,
    answer=read_answer,
)
fixed = wrap(throttle["stripe"], create, cost=2.5)
several = wrap(
    {"requests": throttle["stripe"], "tokens": [throttle["mail"]]},
    create,
    profile=OPENAI,
    cost=lambda **call: {"tokens": call["max_tokens"]},
)

limiter = Limiter("redis://localhost/0", {"search": "100/s", "tenant": "10/s"}, timeout=0.5)
in_memory = Limiter("memory://", {"mail": "10/m"}, clock=ManualClock())


def acquire(tenant_id: int) -> Decision | None:
    handle = limiter["tenant", tenant_id]
    try:
        decision = handle.acquire(2, max_wait=0.5)
    except Throttled as error:
        print(error.retry_after, error.limit)
        return None
    except UnknownLimitError:
        return handle.peek()
    limiter.try_acquire(["search", limiter["tenant", tenant_id]], cost={"search": 1, "tenant": 2.5})
    with handle.slot(max_wait=1):
        print(decision.allowed, decision.remaining, decision.reset_after)
    limiter["search"].reserve(1000).settle(900)
    print(limiter.status(), handle.status(), handle.forecast(), handle.report())
    limiter["tenant", tenant_id].define("20/s", seconds=60, reason="sale", by="me")
    handle.pause(30, reason="bounces")
    handle.resume()
    return handle.acquire_up_to(5)


async def aacquire() -> bool:
    decision = await limiter["search"].aacquire(max_wait=1)
    async with limiter["search"].slot():
        return decision.allowed


def clients() -> tuple[httpx.Client, httpx.AsyncClient, requests.Session]:
    stripe = throttle["stripe"]
    session = requests.Session()
    session.mount(
        "https://api.stripe.com",
        ThrottledAdapter(stripe, cost=lambda call: len(call.url or "")),
    )
    transport = ThrottledTransport(
        lambda request: throttle["stripe", request.headers["Stripe-Account"]],
        cost=lambda request: len(request.content),
        usage=lambda body: body["usage"],
    )
    return (
        httpx.Client(transport=transport),
        httpx.AsyncClient(transport=AsyncThrottledTransport([stripe, throttle["mail"]], cost=2)),
        session,
    )


def aiohttp_client() -> aiohttp.ClientSession:
    middleware = ThrottledMiddleware(throttle["stripe"], cost=lambda request: len(request.method))
    return aiohttp.ClientSession(middlewares=[middleware])


@ratelimit(
    limiter["search"], key=lambda request: request.user.id, cost=lambda request: request.cost
)
def search(request: Any) -> str:
    return str(request)


def web(wsgi: Any, asgi: Any) -> list[Any]:
    page = create_app(throttle, auth=lambda request: request.headers.get("X-Forwarded-User"))
    inbound = ThrottledWSGI(wsgi, limiter["search"], key=by_address())
    return [page, inbound, ThrottledASGI(asgi, limiter["search"], cost=lambda scope: scope["cost"])]


@task_throttled.connect
def on_throttled(sender: Any, **fields: Any) -> None:
    print(sender, fields)
