"""Calls of language models in tasks, by the vendors' SDKs, for ``tokens`` and ``tenants``."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import anthropic
import openai
import redis
from celery import Celery
from celery.signals import task_failure, task_success, worker_process_init

from benchmarks.apps.tasks import DIRECTORY, SETTINGS
from benchmarks.marks import open_marks, write
from benchmarks.vendors import send
from celery_throttle import Throttle, throttled

WAY: str = SETTINGS["way"]
SDK: str = SETTINGS["sdk"]
URL: str = SETTINGS["url"]
LIMITS: dict[str, str] = SETTINGS["limits"]

#: Seconds after which a client gives up; seconds after which a failed task runs again.
TIMEOUT_SECONDS, RETRY_SECONDS = SETTINGS["timeout"], (0.1, 0.3)

app = Celery("llm", broker=SETTINGS["broker"])
app.conf.worker_prefetch_multiplier = 1
throttle = Throttle(app, limits=LIMITS, url=SETTINGS["store"], prefix=SETTINGS["prefix"])
_DONE, _FAILED = open_marks(DIRECTORY / "done"), open_marks(DIRECTORY / "failed")
_STARTS, _ENDS = open_marks(DIRECTORY / "starts"), open_marks(DIRECTORY / "ends")


@cache
def sdk_client(max_retries: int = 2) -> Any:
    """The client of the SDK, without limits; one for each process."""
    options: dict[str, Any] = {"max_retries": max_retries, "timeout": TIMEOUT_SECONDS}
    if SDK == "openai":
        return openai.OpenAI(api_key="x", base_url=f"{URL}/v1", **options)
    return anthropic.Anthropic(api_key="x", base_url=URL, **options)


@cache
def our_client() -> Any:
    """The same client with limits."""
    limits = {name: throttle[name] for name in LIMITS}
    return throttled(sdk_client(0 if WAY == "errors" else 2), limits)


def _ours(_task: Any, tokens: int) -> None:
    send(our_client(), SDK, tokens)


def _stream(_task: Any, tokens: int) -> None:
    for _ in send(our_client(), SDK, tokens, stream=True, stream_options={"include_usage": True}):
        pass


def _errors(task: Any, tokens: int) -> None:
    try:
        send(our_client(), SDK, tokens)
    except (openai.APITimeoutError, openai.InternalServerError) as error:
        raise task.retry(exc=error, countdown=random.uniform(*RETRY_SECONDS)) from error


@cache
def _tenants_client() -> Any:
    def limits_of(request: Any) -> Any:
        tenant = json.loads(request.content)["user"]
        return [throttle["api"], throttle["tenant", tenant]]

    return throttled(sdk_client(0), limits_of, retry_refused=20)


def _of_tenant(_task: Any, tenant: int) -> None:
    messages: Any = [{"role": "user", "content": "10 tokens"}]
    _tenants_client().chat.completions.create(
        model="m", messages=messages, max_tokens=20, user=str(tenant)
    )


def _sdk(_task: Any, tokens: int) -> None:
    send(sdk_client(), SDK, tokens)


@cache
def _token_throttle() -> Any:
    other = import_module("token_throttle")  # it may be missing
    quotas = [
        other.Quota(metric=name, limit=burst, per_seconds=SETTINGS["burst_seconds"])
        for name, burst in _bursts().items()
    ]
    backend = other.SyncRedisBackendBuilder(
        redis.Redis.from_url(SETTINGS["store"]), key_prefix="benchmark"
    )
    config = other.PerModelConfig(quotas=other.UsageQuotas(quotas))
    return other.SyncRateLimiter(config, backend=backend)


def _bursts() -> dict[str, int]:
    return {name: int(text.split()[-1]) for name, text in LIMITS.items()}


def _by_token_throttle(_task: Any, tokens: int) -> None:
    estimate = {"requests": 1, "tokens": 2 * tokens}
    with _token_throttle().reserve(estimate, model="m") as handle:
        usage = send(sdk_client(0), SDK, tokens).usage
        handle.set_actual_usage({"requests": 1, "tokens": usage.total_tokens})


@cache
def _windows() -> Any:
    from limits import RateLimitItemPerSecond  # noqa: PLC0415  # it may be missing
    from limits.storage import RedisStorage  # noqa: PLC0415
    from limits.strategies import SlidingWindowCounterRateLimiter  # noqa: PLC0415

    seconds = SETTINGS["burst_seconds"]
    items = {name: RateLimitItemPerSecond(burst, seconds) for name, burst in _bursts().items()}
    return SlidingWindowCounterRateLimiter(RedisStorage(SETTINGS["store"])), items


def _by_limits(task: Any, tokens: int) -> None:
    limiter, items = _windows()
    costs = {"requests": 1, "tokens": 2 * tokens}
    for name, item in items.items():
        if not limiter.test(item, name, cost=costs[name]):
            reset = limiter.get_window_stats(item, name).reset_time - time.time()
            # It cannot tell when a part of the window is free.
            raise task.retry(countdown=min(1.0, max(0.1, reset)))
    for name, item in items.items():
        limiter.hit(item, name, cost=costs[name])
    send(sdk_client(0), SDK, tokens)


_WAYS: dict[str, Callable[[Any, int], None]] = {
    "ours": _ours,
    "streams": _stream,
    "errors": _errors,
    "tenants": _of_tenant,
    "sdk": _sdk,
    "token-throttle": _by_token_throttle,
    "limits": _by_limits,
}


@app.task(bind=True, name="call", max_retries=None)
def call(self: Any, tokens: str) -> None:
    """Send one request."""
    write(_STARTS, self.request.id)
    try:
        _WAYS[WAY](self, int(tokens))
    finally:
        write(_ENDS, self.request.id)


@worker_process_init.connect
def _warm_up(**_: Any) -> None:
    """Import what the SDK imports at its first call, which would count as time of a task."""
    client = our_client() if WAY in ("ours", "streams", "errors") else sdk_client()
    _ = client.chat.completions if SDK == "openai" else client.messages


@task_success.connect
def _done(sender: Any, **_: Any) -> None:
    write(_DONE, sender.request.id)


@task_failure.connect
def _failed(task_id: str, **_: Any) -> None:
    write(_FAILED, task_id)
