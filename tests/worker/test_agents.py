"""Tasks whose bodies call an API: estimates settle, and nothing is paid twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_throttle.operations.plan import read_call
from tests.apps import agents
from tests.clients.vendors import OpenAI, Reply
from tests.observe.metrics.page import read_page
from tests.servers.server import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.workers

APP = "tests.apps.agents"


@pytest.fixture
def vendor() -> Iterator[OpenAI]:
    vendor = OpenAI({"requests": 600_000, "tokens": 60_000_000})
    yield vendor
    vendor.close()


@pytest.fixture(autouse=True)
def configure(redis_url: str) -> None:
    agents.app.conf.update(broker_url=redis_url, result_backend=redis_url)


def send(task: Any, url: str, count: int, *args: Any) -> list[Any]:
    with agents.app.connection_for_write(agents.app.conf.broker_url) as link:
        return [task.apply_async((url, *args), connection=link) for _ in range(count)]


def wait_for_use(used: int) -> None:
    """Wait until the limit counts what was used, but for a few units that drained."""

    def is_counted() -> bool:
        return 3000 - used <= agents.throttle["tpm"].peek(0).remaining <= 3000 - used + 190

    wait_until(is_counted, "refunds")  # a result is stored before its task ends


@pytest.mark.thorough
@pytest.mark.parametrize("change", [0, -300, 300])
def test_estimates_settle_after_a_wait_in_a_line(
    begin: Callable[..., Worker], vendor: OpenAI, change: int
) -> None:
    """Whatever the next run estimates. Without refunds, three tasks would use up the quota."""
    begin(concurrency=1 if change > 0 else 4)  # alone, a run need not wait for more units
    agents.throttle["tpm"].pause(3600)
    results = [send(agents.ask, vendor.url, 1, number, change)[0] for number in range(8)]
    wait_until(lambda: agents.throttle["tpm"].list_waiting().waiting == 8, "waiting tasks")
    agents.throttle["tpm"].resume()
    for result in results:
        result.get(timeout=60)
    assert len(vendor.requests) == 8
    client: Any = redis.Redis.from_url(agents.app.conf.broker_url)
    assert client.mget([f"runs {number}" for number in range(8)]) == [b"2"] * 8
    wait_for_use(8 * 200)


@pytest.mark.parametrize("calls", [1, 2, 0])
def test_declared_estimates_settle(
    begin: Callable[..., Worker], vendor: OpenAI, calls: int
) -> None:
    """At the gate and after a wait; by one call, by several, and if the task makes none."""
    begin(concurrency=4)
    for result in send(agents.declare, vendor.url, 6, calls):
        result.get(timeout=60)
    assert len(vendor.requests) == 6 * calls
    wait_for_use(6 * 200 if calls else 0)


def test_declared_estimates_of_a_fan_out_settle(
    begin: Callable[..., Worker], vendor: OpenAI
) -> None:
    begin(concurrency=2)
    fan_out = agents.throttle.fan_out(agents.declare.s(vendor.url, 1) for _ in range(6))
    wait_until(lambda: fan_out.progress().done == 6, "the end of the fan-out")
    assert len(vendor.requests) == 6
    wait_for_use(6 * 200)


def test_six_calls_are_paid_once(begin: Callable[..., Worker], vendor: OpenAI) -> None:
    """Whatever the limit does meanwhile."""
    begin(concurrency=4)
    results = send(agents.agent, vendor.url, 5)
    for step in range(4):
        wait_until(lambda: len(vendor.requests) >= 5 * step, "requests")  # noqa: B023  # called here
        agents.throttle["rpm"].pause(0.2)
    for result in results:
        result.get(timeout=60)
    assert len(vendor.requests) == 30


@pytest.mark.thorough
@pytest.mark.pools("prefork", "threads")
def test_eight_calls_at_once_are_paid_once(
    begin: Callable[..., Worker], vendor: OpenAI, pool: str
) -> None:
    begin(pool=pool, concurrency=3)
    for result in send(agents.gather, vendor.url, 3):
        result.get(timeout=60)
    assert len(vendor.requests) == 24


@pytest.mark.thorough
def test_a_killed_worker_does_not_pay_again(begin: Callable[..., Worker], vendor: OpenAI) -> None:
    """Without ``acks_late`` its task is lost, once the server knows that it has started."""
    worker = begin(concurrency=1, hostname="one@localhost")
    agents.throttle["paused"].pause(3600)
    send(agents.agent, vendor.url, 1, 6, "paused")
    keys, store = agents.throttle.keys, agents.throttle.store
    wait_until(lambda: agents.throttle["paused"].list_waiting().waiting, "a waiting task")
    is_third, ended = threading.Event(), threading.Event()

    def stand_still(_: Any) -> None:
        if len(vendor.requests) == 3:
            is_third.set()
            ended.wait(60)

    vendor.trouble = stand_still
    agents.throttle["paused"].resume()
    assert is_third.wait(60)
    with_claims = read_call("", ("EXISTS", keys.workers))
    wait_until(lambda: store.run(with_claims)[1] == 0, "a settled claim")
    worker.kill()
    worker.wait()
    ended.set()
    begin(concurrency=1, hostname="two@localhost")
    (result,) = send(agents.agent, vendor.url, 1, 1)
    result.get(timeout=60)
    assert len(vendor.requests) == 3 + 1
    assert not agents.throttle["paused"].list_waiting().waiting


class Narrow(OpenAI):
    """Answers some requests at once, refuses those beyond, and says nothing about a time."""

    def __init__(self, most: int) -> None:
        super().__init__({})
        self.most = most
        self.open = 0
        self.has_refused = threading.Event()  # until then, it answers nothing
        self.found: list[int] = []  # requests that were open when each came, itself included

    def answer(self, request: dict[str, Any]) -> Reply:
        with self._lock:
            self.open += 1
            self.found.append(self.open)
            is_refused = self.open > self.most
        if is_refused:
            self.has_refused.set()
        else:
            self.has_refused.wait(60)
            time.sleep(0.1)
        with self._lock:
            self.open -= 1
        error = {"message": "Too many requests", "code": "rate_limit_exceeded"}
        return Reply(429, {"error": error}) if is_refused else self.success(request)


@pytest.mark.thorough
@pytest.mark.pools("prefork")
def test_adaptive_slots_follow_an_api_that_answers_three_at_once(
    begin: Callable[..., Worker], pool: str
) -> None:
    """All processes share the number: no task fails, and few requests are refused."""
    vendor = Narrow(3)
    begin(pool=pool, concurrency=6)
    for result in send(agents.one_of_several, vendor.url, 80):
        result.get(timeout=120)
    vendor.close()
    refused = sum(open_at_once > 3 for open_at_once in vendor.found)
    assert len(vendor.found) == 80 + refused
    assert 1 <= refused <= 16
    assert max(vendor.found[-40:]) <= 4
    page = read_page(agents.throttle)
    assert page.get("slots_in_force", limit="learned") in (2, 3, 4)
    assert page.get("refusals_total", limit="learned", reason="api") == refused
