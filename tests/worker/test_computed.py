"""Limits and costs that are functions of a task's arguments, with real workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.result import AsyncResult

from celery_throttle import (
    CostError,
    KeyTemplateError,
    Limiter,
    LimitFunctionError,
    Throttled,
    UnknownLimitError,
)
from tests.apps import computed
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

APP = "tests.apps.computed"


class Site:
    """The server, and what functions and runs noted there."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.limiter = Limiter(url, computed.LIMITS)
        computed.app.conf.update(broker_url=url, result_backend=url)

    def notes(self, what: str) -> list[str]:
        return sorted(row.decode() for row in self.client.lrange(f"computed-{what}", 0, -1))

    def waiting(self) -> int:
        return self.limiter["plan"].status().waiting

    def units_left(self, key: object) -> float:
        return self.limiter["mail", key].peek().remaining


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    site = Site(redis_url)
    site.client.hset("plans", mapping={"ada": "gold", "bob": "free"})
    yield site
    site.client.close()


def test_a_function_chooses_the_limit_and_key_of_a_call(
    site: Site, begin: Callable[..., Worker]
) -> None:
    begin()
    for user in ("ada", "ada", "bob", "eve", "eve", "eve"):
        computed.app.tasks["planned"].delay(user)
    wait_until(lambda: site.waiting() == 1, "the second task of ada waits")
    wait_until(
        lambda: site.notes("runs") == ["ada", "bob", "eve", "eve", "eve"],
        "users with a unit run, and those without a limit",
    )
    assert site.notes("calls") == ["ada", "ada", "bob", "eve", "eve", "eve"]


def test_what_was_computed_goes_with_the_message(site: Site, begin: Callable[..., Worker]) -> None:
    site.client.hset("first-plans", "ada", "gold")
    first = begin()
    for _ in range(4):
        computed.app.tasks["inner"].delay("ada")
    wait_until(lambda: site.waiting() == 3, "three tasks wait")
    first.terminate()
    first.wait()
    site.client.hset("plans", "ada", "free")
    begin()
    site.limiter["plan", "gold"].define("1000/s")
    wait_until(lambda: site.notes("runs") == ["ada"] * 4, "all run under the first plan")
    assert site.notes("calls") == ["ada"] * 4


@pytest.mark.usefixtures("site")
def test_a_function_that_is_wrong_fails_only_its_task(begin: Callable[..., Worker]) -> None:
    begin(concurrency=1)
    results: dict[str, AsyncResult[Any]] = {
        what: computed.app.tasks["wrong"].delay(what)
        for what in ("ends", "raises", "number", "unknown", "template")
    }
    for what, error, text in (
        ("ends", LimitFunctionError, "'go_wrong' raised SystemExit: 'no plans'"),
        ("raises", LimitFunctionError, "'go_wrong' raised LookupError: 'no such tenant'"),
        ("number", LimitFunctionError, "returned 5: 5 is not text"),
        ("unknown", UnknownLimitError, "returned 'males:7': limit 'males' is not defined"),
        ("template", KeyTemplateError, "has no argument 'who'"),
    ):
        with pytest.raises(error, match=text) as caught:
            results[what].get(timeout=30)
        assert str(caught.value).startswith("task 'wrong'")


@pytest.mark.pools("prefork", "threads", "gevent", "eventlet")
def test_a_slow_function_delays_only_its_task(
    site: Site, begin: Callable[..., Worker], pool: str
) -> None:
    begin(pool=pool, concurrency=1)
    wrong, chunks = computed.app.tasks["wrong"], computed.app.tasks["wrong"].chunks([["blocks"]], 1)
    slow = [*(wrong.delay("blocks") for _ in range(9)), chunks.apply_async()[0]]
    assert computed.app.tasks["lengthy"].delay([], None).get(timeout=30) == "sent"
    assert computed.app.tasks["costly"].delay(4).get(timeout=30) == "sent"
    assert not any(result.ready() for result in slow)
    site.client.set("go-on", "")
    assert [result.get(timeout=30) for result in slow] == [*["blocks"] * 9, ["blocks"]]


def test_a_function_that_does_not_return_fails_its_tasks(
    site: Site, begin: Callable[..., Worker]
) -> None:
    begin(concurrency=1, env={"FUNCTION_SECONDS": "0.5"})
    wrong = computed.app.tasks["wrong"]
    stuck = [wrong.delay("blocks") for _ in range(6)]  # more than there are threads
    for result in stuck:
        text = "task 'wrong': the throttle function 'go_wrong' has not returned within 0.5 s"
        with pytest.raises(LimitFunctionError, match=text):
            result.get(timeout=30)
    with pytest.raises(LimitFunctionError, match="4 such calls still run"):
        wrong.delay("raises").get(timeout=30)
    assert computed.app.tasks["costly"].delay(4).get(timeout=30) == "sent"
    site.client.set("go-on", "")

    def recovers() -> bool:
        with pytest.raises(LimitFunctionError) as caught:
            wrong.delay("raises").get(timeout=30)
        return "no such tenant" in str(caught.value)

    wait_until(recovers, "the threads are free")


def test_costs_may_be_functions_and_lengths(site: Site, begin: Callable[..., Worker]) -> None:
    begin()
    assert computed.app.tasks["costly"].delay(4).get(timeout=30) == "sent"
    assert site.units_left("x") == 6
    with pytest.raises(LimitFunctionError, match="returned 'many' as the cost for 'mail'"):
        computed.app.tasks["costly"].delay("many").get(timeout=30)
    lengthy = computed.app.tasks["lengthy"]
    assert lengthy.delay(["a", "b", "c"], tenant=7).get(timeout=30) == "sent"
    assert site.units_left(7) == 7
    assert lengthy.delay(["a"] * 99).get(timeout=30) == "sent"  # no tenant, no limit
    with pytest.raises(CostError, match="'to' is 5, which has no length"):
        lengthy.delay(5, tenant=7).get(timeout=30)
    with pytest.raises(CostError, match="can never pass limit 'mail'"):
        computed.app.tasks["costly"].delay(10**400).get(timeout=30)


def test_who_sends_a_task_to_its_line_computes_its_limits(
    site: Site, begin: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    sender = computed.make_app(redis_url, publish="line")
    monkeypatch.setattr(computed, "STORE", redis_url)
    begin()
    for _ in range(2):
        computed.app.tasks["planned"].delay("ada")
    wait_until(lambda: site.waiting() == 1, "a task waits")
    sender.tasks["planned"].delay("ada")
    assert site.waiting() == 2
    site.client.hdel("plans", "ada")
    site.limiter["plan", "gold"].define("1000/s")
    wait_until(lambda: site.notes("runs") == ["ada"] * 3, "all run")
    assert site.notes("calls") == ["ada"] * 3


@pytest.mark.thorough
def test_the_limit_of_a_key_is_looked_up_once_and_then_every_so_often(
    site: Site, begin: Callable[..., Worker]
) -> None:
    site.client.hset("limits", mapping={"ada": "1000/s burst 50", "bob": "2/h burst 2"})
    begin()
    user = computed.app.tasks["user"]
    for name in ("ada", "bob", "eve") * 4:
        user.delay(name)
    expected = ["ada"] * 4 + ["bob"] * 2 + ["eve"]
    wait_until(lambda: site.notes("runs") == expected, "each runs as its limit says")
    assert set(site.notes("lookups")) == {"ada", "bob", "eve"}
    status = site.limiter["user", "bob"].status()
    assert status.clauses == ("2/h burst 2",)
    assert status.origin is not None
    assert status.origin.layer == "code"
    assert "looked up by look_up" in str(status.origin.author)
    assert site.limiter["user", "eve"].status().clauses == ("1/h",)

    site.client.hset("limits", "bob", "1000/s burst 50")
    wait_until(lambda: site.notes("runs").count("bob") == 4, "a change applies to waiting tasks")
    site.client.hset("limits", "eve", "1000/s burst 50")
    wait_until(lambda: site.notes("runs").count("eve") == 4, "also of keys that had none")
    calls = site.notes("lookups").count("ada")
    user.delay("ada")
    wait_until(lambda: site.notes("runs").count("ada") == 5, "it runs")
    wait_until(lambda: site.notes("lookups").count("ada") >= calls, "it is looked up")


@pytest.mark.thorough
def test_a_lookup_that_fails_or_is_slow_concerns_only_its_tasks(
    site: Site, begin: Callable[..., Worker]
) -> None:
    limits = {"ada": "raise", "bob": "5", "cy": "end", "eve": "slow", "jo": "5/s"}
    site.client.hset("limits", mapping=limits)
    worker = begin(concurrency=1)
    user = computed.app.tasks["user"]
    eve, cy, ada, bob, jo = (user.delay(name) for name in ("eve", "cy", "ada", "bob", "jo"))
    jo.get(timeout=30)
    assert not eve.ready()
    for result, text in (
        (cy, "'look_up', called for user:cy, raised SystemExit: 'no plans'"),
        (ada, "called for key 'ada', raised LookupError: 'no such plan'"),
        (bob, "called for key 'bob', returned 5: limit 'user': 5 is not a limit"),
    ):
        with pytest.raises(LimitFunctionError, match=text):
            result.get(timeout=30)
    eve.get(timeout=30)
    site.client.hset("limits", "jo", "raise")
    wait_until(
        lambda: user.delay("jo") and "The limit of user:jo stays as it is" in worker.log(),
        "it is kept",
    )
    site.client.hset("limits", "ada", "5/s")
    user.delay("ada").get(timeout=30)


@pytest.mark.thorough
def test_each_connection_to_the_broker_looks_keys_up_in_the_same_threads(
    own_server: Server, start_worker: StartWorker
) -> None:
    """The server is not shared: kombu would give a killed connection to another test."""
    user = computed.make_app(own_server.url).tasks["user"]
    worker = start_worker(APP, own_server.url)
    threads = Path(f"/proc/{worker.pid}/task")
    with own_server.client() as client:
        client.hset("limits", mapping={"ada": "5/s", "bob": "5/s"})
        user.delay("ada")
        wait_until(lambda: client.llen("computed-runs") == 1, "it runs")
        count = len([*threads.iterdir()])
        client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: "Connection to broker lost" in worker.log(), "a new connection")
        user.delay("bob")
        wait_until(lambda: client.llen("computed-runs") == 2, "it runs")
    wait_until(lambda: len([*threads.iterdir()]) <= count, "no more threads")


def test_who_sends_a_task_to_its_line_looks_its_key_up(
    site: Site,
    begin: Callable[..., Worker],
    monkeypatch: pytest.MonkeyPatch,
    redis_url: str,
) -> None:
    monkeypatch.setattr(computed, "STORE", redis_url)
    site.client.hset("limits", "ada", "2/h burst 2")
    sender: Any = computed.make_app(redis_url)
    sender.throttle.fan_out(sender.tasks["user"].s("ada") for _ in range(5))
    assert site.notes("lookups") == ["ada"]
    begin()
    wait_until(lambda: site.notes("runs") == ["ada"] * 2, "as many run as the key allows")
    site.client.hset("limits", "ada", "3/h burst 3")
    wait_until(lambda: site.notes("runs") == ["ada"] * 3, "a change applies to waiting tasks")


def test_calls_outside_of_tasks_look_their_keys_up(
    site: Site, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setattr(computed, "STORE", redis_url)
    limits = {"ada": "2/h burst 2", "bob": "raise", "eve": "3/h burst 3"}
    site.client.hset("limits", mapping=limits)
    throttle = computed.make_app(redis_url).throttle  # type: ignore[attr-defined]  # the Throttle
    ada, bob, eve = (throttle["user", key] for key in limits)
    assert [ada.try_acquire().allowed for _ in range(3)] == [True, True, False]
    assert {*site.notes("lookups")} == {"ada"}
    with pytest.raises(LimitFunctionError, match="raised LookupError: 'no such plan'"):
        bob.acquire()
    assert asyncio.run(eve.aacquire_up_to(9)).granted == 3
    site.client.hset("limits", "eve", "raise")
    wait_until(
        lambda: not eve.try_acquire() and site.notes("lookups").count("eve") > 1,
        "it is looked up again",
    )
    assert site.limiter["user", "eve"].status().clauses == ("3/h burst 3",)
    site.client.hset("limits", "ada", "1000/s burst 50")
    wait_until(lambda: ada.try_acquire().allowed, "a change applies")


@pytest.mark.usefixtures("site")
def test_a_lookup_blocks_no_event_loop(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> None:
    monkeypatch.setattr(computed, "STORE", redis_url)
    throttle = computed.make_app(redis_url).throttle  # type: ignore[attr-defined]  # the Throttle
    threads: list[threading.Thread] = []
    monkeypatch.setattr(computed, "note", lambda *_: threads.append(threading.current_thread()))
    assert asyncio.run(throttle["user", "ada"].atry_acquire()).allowed
    with pytest.raises(Throttled):
        asyncio.run(throttle["user", "ada"].aacquire())
    assert threads
    assert threading.current_thread() not in threads
