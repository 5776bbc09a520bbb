"""Tasks that meet limits in their bodies. Each run is noted in a list in Redis, ``inside``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import redis
import requests
from celery import Celery, Task
from celery.signals import task_retry

from celery_throttle import Limiter, Throttle, Throttled
from celery_throttle.clients.requests import ThrottledAdapter

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost/0")
STORE = os.environ.get("THROTTLE_URL") or BROKER

app = Celery("inside", broker=BROKER, backend=BROKER, set_as_current=False)
app.conf.throttle_url = os.environ.get("THROTTLE_URL")
app.conf.throttle_waiting = os.environ.get("INSIDE_WAITING")
throttle = Throttle(
    app,
    limits={
        "api": "100/s",
        "other": "100/s",
        "slow": "5/s",
        "bulk": "100/s burst 10",
        "pool": "2 at once",
        "never": "1/h",
        "loss": "2/s outage open",
        "quick": "1000/s burst 2",
    },
)


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(os.environ.get("INSIDE_NOTES", STORE))


def note(task: Task, number: Any, what: str = "done", **more: Any) -> None:
    request = task.request
    about = {
        "task": task.name.rpartition(".")[2],
        "what": what,
        "number": number,
        "at": time.time(),
        "retries": request.retries,
        "headers": request.headers,
        "delivery": sorted(request.delivery_info or ()),
        "pid": os.getpid(),
        **more,
    }
    store().rpush("inside", json.dumps(about))


@task_retry.connect
def _on_retry(sender: Any, **_: Any) -> None:
    store().rpush("inside-retries", sender.name)


def task(**options: Any) -> Callable[[Callable[..., Any]], Task]:
    return app.task(bind=True, shared=False, **options)


@cache
def session() -> requests.Session:
    session = requests.Session()
    session.mount("http://", ThrottledAdapter(throttle["api"]))
    return session


@task()
def early(self: Task, number: int) -> int:
    note(self, number, "begin")
    throttle["api"].acquire(max_wait=0)
    note(self, number)
    return number


@task(acks_late=True, autoretry_for=(Exception,), max_retries=3)
def late(self: Task, number: int) -> int:
    note(self, number, "begin")
    throttle["api"].acquire(max_wait=0)
    note(self, number)
    return number


@task()
def plain(self: Task, number: int) -> None:
    note(self, number)


@task(throttle="other")
def two(self: Task, number: int) -> None:
    """Two limits in the body, one after the other, and one of its own."""
    throttle["api"].acquire(max_wait=0)
    throttle["slow"].acquire(max_wait=0)
    note(self, number)


@task(throttle="api")
def same(self: Task, number: int) -> None:
    """Its own limit is the one that its client asks for as well."""
    throttle["api"].acquire(max_wait=0)
    note(self, number)


@task()
def again(self: Task, number: int) -> None:
    """More units of one limit than it has at once."""
    for _ in range(3):
        throttle["api"].acquire(max_wait=0)
    note(self, number)


@task()
def bulk(self: Task, number: int) -> None:
    """As many units as the limit has at once, one by one, and all of them."""
    for _ in range(4):
        throttle["bulk"].acquire(max_wait=0)
    throttle["bulk"].acquire(6, max_wait=0)
    note(self, number)


@task()
def holds(self: Task, number: int) -> None:
    for _ in range(2):
        with throttle["pool"].slot():
            note(self, number, "in")
            time.sleep(0.05)
            note(self, number, "out")
    note(self, number)


@task()
def awaits(self: Task, number: int) -> None:
    async def call() -> None:
        await throttle["api"].aacquire(max_wait=0)
        async with throttle["pool"].slot():
            pass

    asyncio.run(call())
    note(self, number)


@task()
def estimates(self: Task, number: int) -> None:
    throttle["api"].reserve(1).settle(0.5)
    note(self, number)


@task()
def catches(self: Task, number: int) -> str:
    try:
        throttle["never"].acquire(max_wait=0)
    except Throttled as error:
        note(self, number, "caught", retry_after=error.retry_after)
        return "caught"
    note(self, number)
    return "passed"


@task(expires=3600)
def waits(self: Task, number: int) -> None:
    """For an hour, unless it is the first."""
    note(self, number, "begin")
    throttle["never"].acquire(max_wait=0)
    note(self, number)


@task()
def directly(self: Task, number: int) -> None:
    """Calls another task as a function: that is no task of a worker."""
    early(number)
    note(self, number)


@task()
def fetch(self: Task, number: int, url: str) -> None:
    _fetch(self, number, url)


def _fetch(self: Task, number: int, url: str) -> None:
    answer = session().get(url, timeout=10)
    if answer.status_code == 429:
        answer = session().get(url, timeout=10)
    note(self, number, status=answer.status_code)


@task(throttle="api")
def fetch_own(self: Task, number: int, url: str) -> None:
    """Its own limit is that of the client, which has stopped when it asks again."""
    _fetch(self, number, url)


@task()
def swallows(self: Task, number: int) -> str:
    """Means to be safe."""
    try:
        throttle["never"].acquire(max_wait=0)
    except Exception:  # noqa: BLE001 -- that is the point
        note(self, number, "swallowed")
        return "no call"
    return "called"


@task()
def swallows_and_fails(self: Task, number: int) -> None:
    """As an SDK does: its own error in place of that of its transport."""
    try:
        throttle["never"].acquire(max_wait=0)
    except Exception as error:
        note(self, number, "swallowed")
        raise ConnectionError("the API") from error


@task()
def hands_on(self: Task, number: int) -> None:
    """As the warning says."""
    note(self, number, "begin")
    try:
        throttle["slow"].acquire(max_wait=0)
    except Throttled:
        raise
    except Exception:  # noqa: BLE001 -- that is the point
        note(self, number, "swallowed")
    note(self, number)


@task()
def resends(self: Task, number: int, url: str, times: int = 2) -> int:
    """Its client sends what was refused again."""
    note(self, number, "begin")
    with resending(times) as client:
        answer = client.get(url, timeout=10)
    note(self, number, status=answer.status_code)
    return answer.status_code


@task(throttle="api", acks_late=True)
def resends_own(self: Task, number: int, url: str, times: int = 2) -> int:
    """Its own limit is that of its client."""
    note(self, number, "begin")
    with resending(times) as client:
        answer = client.get(url, timeout=10)
    note(self, number, status=answer.status_code)
    return answer.status_code


def resending(times: int) -> requests.Session:
    session = requests.Session()
    session.mount("http://", ThrottledAdapter(throttle["api"], retry_refused=times))
    return session


@task()
def ends(self: Task, number: int) -> None:
    """Meets a limit that has room a moment later, while its worker ends."""
    note(self, number, "begin")
    time.sleep(1)
    throttle["quick"].acquire(2, max_wait=0)
    note(self, number)


@task()
def loses(self: Task, number: int, pid: int) -> None:
    """The server of the limits stops as soon as it has refused."""
    note(self, number, "begin")
    first = store().llen("inside") == 1
    if first:
        Limiter(STORE, {"loss": "2/s outage open"})["loss"].try_acquire()
    try:
        throttle["loss"].acquire(max_wait=0)
    except Throttled:
        os.kill(pid, signal.SIGKILL)
        raise
    note(self, number, first=first)


@task()
def steps_out_late(self: Task, number: int) -> None:
    """A run that a limit refuses goes on until the test lets it end."""
    note(self, number, "begin")
    try:
        throttle["slow"].acquire(max_wait=0)
    except Throttled:
        note(self, number, "refused")
        while not store().exists(f"inside-end:{number}"):
            time.sleep(0.02)
        raise
    note(self, number)
