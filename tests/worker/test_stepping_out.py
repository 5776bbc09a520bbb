"""Tasks that meet a limit in their bodies: they step into its line, and run once more."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from tests.apps import inside
from tests.clients.api import Answer, Api
from tests.servers.server import Server, wait_until
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

APP = "tests.apps.inside"


class Site:
    """One server for all, and what runs noted there."""

    def __init__(self, url: str) -> None:
        self.client = redis.Redis.from_url(url)
        self._notes: list[dict[str, Any]] = []
        inside.app.conf.update(broker_url=url, result_backend=url)
        self._link = inside.app.connection_for_write(url)

    def send(self, task: Any, *numbers: int, **options: Any) -> list[Any]:
        return [task.apply_async((one,), connection=self._link, **options) for one in numbers]

    def notes(self, what: str = "done") -> list[dict[str, Any]]:
        new: list[bytes] = self.client.lrange("inside", len(self._notes), -1)  # type: ignore[assignment]  # not async
        self._notes += map(json.loads, new)
        return [note for note in self._notes if note["what"] == what]

    def wait(self, done: int, what: str = "done", seconds: float = 60) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while len(found := self.notes(what)) < done:
            assert time.monotonic() < deadline, Counter(note["task"] for note in found)
            time.sleep(0.05)
        return found

    def wait_for(self, task: str, number: int, seconds: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            for note in self.notes():
                if (note["task"], note["number"]) == (task, number):
                    return note
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def close(self) -> None:
        self._link.release()
        self.client.delete("inside", "inside-retries", *self.client.keys("inside-end:*"))
        self.client.close()


@pytest.fixture
def site(redis_url: str) -> Iterator[Site]:
    site = Site(redis_url)
    yield site
    site.close()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.close()


def most_in_a_second(times: list[float]) -> int:
    times = sorted(times)
    return max(sum(at <= one < at + 1 for one in times) for at in times)


@pytest.mark.thorough
def test_a_thousand_tasks_that_meet_a_limit_hold_no_process(
    site: Site, begin: Callable[..., Worker]
) -> None:
    """Others run as if they were not there; each completes once, and none counts a retry."""
    for number in range(2):
        begin(hostname=f"w{number}@localhost")
    site.send(inside.early, *range(500))
    site.send(inside.late, *range(500, 1000))
    site.wait(1000, "begin")
    waits = []
    for number in range(20):
        sent = time.time()
        site.send(inside.plain, number)
        waits.append(site.wait_for("plain", number)["at"] - sent)
    assert median(waits) < 1.0
    done = site.wait(1020)
    assert Counter(note["number"] for note in done if note["task"] != "plain") == Counter(
        range(1000)
    )
    assert {note["retries"] for note in done} == {0}
    assert site.client.llen("inside-retries") == 0
    calls = [note["at"] for note in done if note["task"] != "plain"]
    assert most_in_a_second(calls) <= 110  # a run uses its unit some milliseconds after its start
    assert len(site.notes("begin")) <= 2 * 1000


@pytest.mark.thorough
def test_on_every_pool(site: Site, begin: Callable[..., Worker], pool: str) -> None:
    begin(pool=pool, concurrency=4)
    # asyncio.run() takes a thread for itself, which greenlets share.
    third = "estimates" if pool in ("gevent", "eventlet") else "awaits"
    for task in ("early", "late", third):
        site.send(getattr(inside, task), *range(40))
    done = site.wait(120)
    assert Counter(note["task"] for note in done) == dict.fromkeys(("early", "late", third), 40)
    assert {note["retries"] for note in done} == {0}


def test_the_log_says_what_it_waits_for(
    site: Site, begin: Callable[..., Worker], pool: str
) -> None:
    worker = begin(pool=pool)
    inside.throttle["slow"].pause(3600)
    site.send(inside.hands_on, *range(8))
    site.send(inside.again, 8)
    wait_until(lambda: "waits for limit 'slow'" in worker.log(), "a task that waits")
    inside.throttle["slow"].resume()
    site.wait(9)
    wait_until(lambda: worker.log().count("succeeded in") == 9, "all are logged")
    log = worker.log()
    waits = re.findall(r"Task tests\.apps\.inside\.(\w+)\[[\w-]+\] waits for limit '(\w+)'", log)
    assert ("hands_on", "slow") in waits
    assert "ignored" not in log


def test_the_task_sees_nothing_of_it(site: Site, begin: Callable[..., Worker]) -> None:
    """Its result is as ever, and so are its headers."""
    begin()
    results = site.send(inside.early, *range(30))
    assert [result.get(timeout=30) for result in results] == [*range(30)]
    done = site.wait(30)
    assert {note["headers"] for note in done} == {None}
    assert {tuple(note["delivery"]) for note in done} == {
        ("exchange", "priority", "redelivered", "routing_key")
    }
    chain = inside.early.si(1) | inside.early.si(2)
    group = chain.apply_async(connection=site._link)
    assert group.get(timeout=30) == 2


@pytest.mark.thorough
def test_limits_that_are_requested_one_after_the_other(
    site: Site, begin: Callable[..., Worker]
) -> None:
    """A run begins with those of its own and of its first request; it waits for others in place."""
    begin()
    began = time.time()
    site.send(inside.two, *range(15))
    site.send(inside.same, *range(50))
    done = site.wait(65)
    assert max(note["at"] for note in done) - began < 10
    assert Counter(note["task"] for note in done) == {"two": 15, "same": 50}


@pytest.mark.thorough
def test_more_units_than_a_limit_has_at_once_are_waited_for_in_place(
    site: Site, begin: Callable[..., Worker]
) -> None:
    begin()
    site.send(inside.again, *range(10))
    site.send(inside.bulk, *range(10))
    done = site.wait(20)
    assert Counter(note["task"] for note in done) == {"again": 10, "bulk": 10}


def test_slots_in_a_body(site: Site, begin: Callable[..., Worker]) -> None:
    """Never more than there are; one that was met is held by the task, however often it is used."""
    begin(concurrency=4)
    site.send(inside.holds, *range(10))
    site.wait(10)
    held = most = 0
    changes = [(note["at"], 1) for note in site.notes("in")]
    changes += [(note["at"], -1) for note in site.notes("out")]
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    assert most == 2


def test_who_catches_it_goes_on(site: Site, begin: Callable[..., Worker]) -> None:
    begin()
    inside.throttle["never"].try_acquire()
    (result,) = site.send(inside.catches, 1)
    assert result.get(timeout=30) == "caught"
    (note,) = site.notes("caught")
    assert 3500 < note["retry_after"] <= 3600


def test_an_estimate_that_was_given_is_settled(site: Site, begin: Callable[..., Worker]) -> None:
    begin()
    site.send(inside.estimates, *range(20))
    site.wait(20)


def test_a_task_called_as_a_function_is_its_callers_business(
    site: Site, begin: Callable[..., Worker]
) -> None:
    """The one that the worker runs steps into the line."""
    begin()
    site.send(inside.directly, *range(10))
    done = [note for note in site.wait(20) if note["task"] == "directly"]
    assert sorted(note["number"] for note in done) == [*range(10)]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["terminate", "quit", "kill"])
def test_a_worker_that_ends_loses_none_that_wait(
    site: Site, begin: Callable[..., Worker], how: str
) -> None:
    worker = begin()
    inside.throttle["slow"].pause(3600)
    site.send(inside.hands_on, *range(8))
    deadline = time.monotonic() + 30
    while site.client.hlen(inside.throttle.keys.queue("redis/0/celery").messages) < 8:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    getattr(worker, how)()
    worker.wait()
    begin()
    inside.throttle["slow"].resume()
    done = site.wait(8)
    assert sorted(note["number"] for note in done) == [*range(8)]


@pytest.mark.thorough
def test_a_refusal_of_the_api_stops_all_workers(
    site: Site, begin: Callable[..., Worker], api: Api
) -> None:
    """None but those on their way are sent meanwhile; then they go on, and not faster."""
    for number in range(2):
        begin(hostname=f"w{number}@localhost", concurrency=4)
    api.answers = [*[Answer()] * 50, Answer(429, {"Retry-After": "3"})]
    site.send(inside.fetch, *range(250), kwargs={"url": api.url})
    done = site.wait(250)
    assert {note["status"] for note in done} == {200}
    refused = next(at for at, status in api.log if status == 429)
    sent = sorted(at for at, _ in api.log)
    # Those on their way, and what the limit lets pass until the server is told.
    stopped, resumed = max(pairwise(sent), key=lambda pair: pair[1] - pair[0])
    assert resumed - stopped > 2.8
    assert sum(refused < at <= stopped for at in sent) <= 8 + 100 * (stopped - refused)
    assert most_in_a_second([at for at in sent if at >= resumed]) <= 110
    assert len(sent) == 251


@pytest.mark.thorough
def test_a_refusal_of_the_api_where_the_task_has_the_limit_too(
    site: Site, begin: Callable[..., Worker], api: Api
) -> None:
    begin()
    api.answers = [Answer(), Answer(429, {"Retry-After": "2"})]
    site.send(inside.fetch_own, *range(10), kwargs={"url": api.url})
    done = site.wait(10)
    assert {note["status"] for note in done} == {200}
    assert len(api.log) == 11


@pytest.mark.thorough
def test_a_task_that_meets_a_limit_while_its_worker_ends(
    site: Site, begin: Callable[..., Worker]
) -> None:
    worker = begin(concurrency=4)
    site.send(inside.ends, *range(4))
    site.wait(4, "begin")
    worker.terminate()
    worker.wait()
    begin()
    done = site.wait(4)
    assert sorted(note["number"] for note in done) == [0, 1, 2, 3]


@pytest.mark.thorough
@pytest.mark.pools("prefork", "threads")
def test_a_worker_that_ends_while_its_server_is_slow_loses_none_that_wait_for_a_decision(
    redis_url: str, site: Site, start_worker: StartWorker, own_server: Server, pool: str
) -> None:
    """Their messages are acknowledged, so no broker delivers them again."""
    env = {"THROTTLE_URL": own_server.url, "INSIDE_NOTES": redis_url}
    worker = start_worker(APP, redis_url, env=env, pool=pool, concurrency=4)
    slow = Limiter(own_server.url, {"slow": "5/s"})["slow"]
    slow.pause(3600)
    site.send(inside.steps_out_late, *range(4))
    site.wait(4, "refused")
    own_server.signal(signal.SIGSTOP)
    for number in range(4):
        site.client.set(f"inside-end:{number}", 1)
    wait_until(lambda: worker.log().count("waits for limit") == 4, "the steps out")
    worker.terminate()
    worker.wait()
    own_server.signal(signal.SIGCONT)
    slow.resume()
    start_worker(APP, redis_url, env=env)
    done = site.wait(4)
    assert sorted(note["number"] for note in done) == [*range(4)]


@pytest.mark.thorough
def test_where_tasks_wait_at_the_broker(site: Site, begin: Callable[..., Worker]) -> None:
    """They go back to it, if they are acknowledged: what they met goes with them."""
    begin(env={"INSIDE_WAITING": "broker"})
    for task in (inside.early, inside.late, inside.two):
        site.send(task, *range(10))
    done = site.wait(30)
    assert Counter(note["task"] for note in done) == dict.fromkeys(("early", "late", "two"), 10)
    assert {note["headers"] for note in done} == {None}


def test_a_limit_met_while_its_server_is_lost(
    redis_url: str, site: Site, start_worker: StartWorker, own_server: Server
) -> None:
    """It is decided alone, as for any task; the run is given what it waited for."""
    start_worker(APP, redis_url, env={"THROTTLE_URL": own_server.url, "INSIDE_NOTES": redis_url})
    site.send(inside.loses, 1, kwargs={"pid": own_server.pid})
    (note,) = site.wait(1)
    assert not note["first"]
    assert note["retries"] == 0
    assert len(site.notes("begin")) == 2


# What swallows a wait.


def warnings_in(worker: Worker) -> list[str]:
    return [line for line in worker.log().splitlines() if "swallowed a wait" in line]


@pytest.mark.pools("prefork", "threads", "gevent")
def test_a_task_that_swallows_a_wait_is_named_once(
    site: Site, begin: Callable[..., Worker], pool: str
) -> None:
    worker = begin(pool=pool, concurrency=2)
    inside.throttle["never"].try_acquire()
    results = site.send(inside.swallows, *range(10))
    assert [result.get(timeout=30) for result in results] == ["no call"] * 10
    for result in site.send(inside.swallows_and_fails, *range(10)):
        with pytest.raises(ConnectionError):
            result.get(timeout=30)
    site.wait(20, "swallowed")
    for task, line in zip(("swallows", "swallows_and_fails"), warnings_in(worker), strict=True):
        assert "WARNING" in line
        assert f"tests.apps.inside.{task}[" in line
        assert "limit 'never' refused" in line
        assert "'except Throttled: raise'" in line


def test_a_task_that_passes_the_wait_on_is_not_named(
    site: Site, begin: Callable[..., Worker]
) -> None:
    worker = begin()
    inside.throttle["never"].try_acquire()
    site.send(inside.catches, *range(5))
    site.send(inside.hands_on, *range(8))
    site.wait(5, "caught")
    site.wait(8)
    assert len(site.notes("begin")) > 8  # some stepped out
    (line,) = warnings_in(worker)
    assert "tests.apps.inside.catches[" in line  # it may mean to, but nothing tells


# What the API refused is sent again.


@pytest.mark.parametrize("waiting", ["line", pytest.param("broker", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("task", [inside.resends, inside.resends_own])
def test_what_the_api_refused_is_sent_again_by_the_next_run(
    site: Site, begin: Callable[..., Worker], api: Api, task: Any, waiting: str
) -> None:
    """So often as it may; then the answer is the task's. It keeps no process meanwhile."""
    begin(concurrency=1, env={"INSIDE_WAITING": waiting})
    refusal = Answer(429, {"Retry-After": "1"})
    api.answers = [refusal, refusal]
    (result,) = site.send(task, 1, kwargs={"url": api.url})
    site.send(inside.plain, 2)
    assert result.get(timeout=30) == 200
    first, second, third = (at for at, _ in api.log)
    assert site.wait_for("plain", 2)["at"] < second + time.time() - time.monotonic()
    assert min(second - first, third - second) >= 0.95
    assert len(site.notes("begin")) == 3
    api.answers = [refusal] * 9
    (result,) = site.send(task, 3, kwargs={"url": api.url, "times": 1})
    assert result.get(timeout=30) == 429
    assert len(api.log) == 5
    (note,) = [note for note in site.notes() if note["number"] == 3]
    assert (note["retries"], note["headers"]) == (0, None)


@pytest.mark.thorough
def test_an_address_that_always_refuses_keeps_no_task_going(
    site: Site, begin: Callable[..., Worker], api: Api
) -> None:
    """Each of them ends, in a bounded number of requests; what it was given is not all used up."""
    begin(concurrency=4)
    api.answers = [Answer(429, {"Retry-After-Ms": "100"})] * 1000
    site.send(inside.resends, *range(10), kwargs={"url": api.url})
    done = site.wait(10)
    assert {note["status"] for note in done} == {429}
    assert len(api.log) == 30
