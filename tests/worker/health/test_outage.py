"""Outages: the server of the limits is lost, slow, or back while workers run."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.worker import tuning
from tests.faults.bench import Bench
from tests.faults.proxy import Proxy
from tests.observe.metrics.page import read_page
from tests.servers.server import Server

pytestmark = pytest.mark.workers


@pytest.fixture
def bench(redis_url: str, own_server: Server) -> Iterator[Bench]:
    with Bench(redis_url, own_server.url, conf={"throttle_lease": 1.5}) as bench:
        yield bench


def test_workers_enforce_shares_during_an_outage_and_return_to_the_server(
    bench: Bench, own_server: Server
) -> None:
    bench.start_workers(2)
    bench.until_each_knows_all()
    bench.send("early", range(20))
    bench.until_started("early", 20)
    own_server.stop()
    lost = time.time()
    bench.send("early", range(20, 300))
    bench.send("closed", range(3))
    bench.send("opened", range(60))
    bench.send("plain", range(60))
    bench.until_started("plain", 60)
    bench.until_started("opened", 60)
    bench.until_started("early", 150)
    alone = [row for row in bench.starts("early") if row["at"] > lost]
    seconds = alone[-1]["at"] - alone[0]["at"]
    assert len(alone) <= 100 * seconds + 2 + 5
    assert bench.starts("closed") == []
    assert [row["mode"] for row in bench.rows("modes")] == ["outage"] * 2
    own_server.start()
    back = time.time()
    bench.until_started("closed", 3)
    assert bench.starts("closed")[0]["at"] - back < 5
    bench.until_started("early", 300)
    for task, count in (("early", 300), ("closed", 3), ("opened", 60), ("plain", 60)):
        assert Counter(row["number"] for row in bench.starts(task)) == Counter(range(count))
    assert [row["mode"] for row in bench.rows("modes")] == ["outage"] * 2 + ["normal"] * 2
    seconds = sum(bench.stats(worker)["seconds"] for worker in bench.workers)
    page = read_page(Limiter(own_server.url))
    assert page.get("outage_seconds_total") == pytest.approx(seconds, abs=0.2)
    for worker in bench.workers:
        log = worker.log()
        assert log.count("enforces 1/2 of each limit") == 1
        assert log.count("is back after") == 1
        assert "Traceback" not in log


@pytest.mark.thorough
def test_a_worker_that_starts_during_an_outage_joins_the_server_later(
    bench: Bench, own_server: Server
) -> None:
    own_server.stop()
    conf = {"throttle_lease": 1.5, "throttle_outage_workers": 1}
    bench.start_workers(1, env={"FAULTS_CONF": json.dumps(conf)})
    bench.send("early", range(10))
    bench.send("closed", range(3))
    bench.until_started("early", 10)
    assert bench.starts("closed") == []
    own_server.start()
    bench.until_started("closed", 3)
    assert bench.stats(bench.workers[0])["outages"] == 1


@pytest.mark.thorough
def test_pauses_last_during_an_outage(bench: Bench, own_server: Server) -> None:
    limiter = Limiter(own_server.url, {"api": "100/s", "slots": "4 at once"})
    limiter["api"].pause(None)
    paused = time.time()
    limiter["slots"].pause(8)
    bench.start_workers(2)
    bench.until_each_knows_all()
    own_server.stop()
    bench.send("slotted", range(4))
    bench.send("early", range(20))
    bench.send("opened", range(5))
    bench.until_started("opened", 5)
    bench.until_started("slotted", 1)
    assert bench.starts("slotted")[0]["at"] >= paused + 7.9
    assert bench.starts("early") == []
    own_server.start()  # without its pauses
    bench.until_started("early", 20)


def test_during_an_outage_the_limit_of_the_code_is_enforced(
    bench: Bench, own_server: Server
) -> None:
    """Even if the server is lost right after a deploy that has changed the limit."""
    Limiter(own_server.url, {"api": "1000/s burst 1000", "slots": "4 at once"}).register()
    changed = {"api": "1/h", "slots": "4 at once outage closed"}
    conf = {"throttle_limits": changed, "throttle_lease": 30}
    bench.start_workers(1, env={"FAULTS_CONF": json.dumps(conf)})
    own_server.stop()
    bench.send("early", range(20))
    bench.send("slotted", range(2), 0.0)
    bench.send("opened", range(5))
    bench.until_started("opened", 5)
    assert bench.starts("early") == []
    assert bench.starts("slotted") == []


@pytest.mark.thorough
def test_slots_are_divided_and_reported_after_the_outage(bench: Bench, own_server: Server) -> None:
    bench.start_workers(2)
    bench.until_each_knows_all()
    own_server.stop()
    bench.send("slotted", range(40), 0.2)
    bench.until_started("slotted", 20)
    own_server.start()
    bench.until(lambda: len(bench.rows("ends")) == 40, "all have ended")
    starts = [(row["at"], 1) for row in bench.starts("slotted")]
    ends = [(row["at"], -1) for row in bench.rows("ends")]
    running = most = 0
    for _, change in sorted(starts + ends):
        running += change
        most = max(most, running)
    assert most <= 4  # two processes in each worker, and two slots
    assert Counter(row["number"] for row in bench.starts("slotted")) == Counter(range(40))


@pytest.mark.thorough
def test_a_server_that_has_forgotten_everything_is_told_again(
    bench: Bench, own_server: Server
) -> None:
    bench.start_workers(2)
    bench.send("early", range(30))
    bench.until_started("early", 30)
    with redis.Redis.from_url(own_server.url) as client:
        client.flushall()
        client.script_flush()
    bench.send("early", range(30, 60))
    bench.until_started("early", 60)
    own_server.stop()  # it stores nothing
    own_server.start()
    bench.send("early", range(60, 90))
    bench.until_started("early", 90)
    assert Counter(row["number"] for row in bench.starts("early")) == Counter(range(90))


def test_slots_of_running_tasks_outlive_what_the_server_forgets(
    bench: Bench, own_server: Server
) -> None:
    bench.start_workers(1, concurrency=4)
    bench.send("held", range(4))
    bench.until_started("held", 4)
    with redis.Redis.from_url(own_server.url) as client:
        client.flushall()
        bench.until(lambda: client.zcard("{throttle}:entries:slots") == 4, "the slots are told")
    bench.let_go(4)
    bench.until(lambda: len(bench.rows("ends")) == 4, "all have ended")
    with redis.Redis.from_url(own_server.url) as client:
        bench.until(lambda: not client.exists("{throttle}:entries:slots"), "they are given back")


@pytest.mark.thorough
def test_claims_are_renewed_as_soon_as_the_server_is_back(
    redis_url: str, own_server: Server
) -> None:
    """Otherwise another worker requeues them after an outage of more than the lease."""
    lease = 30  # its third is more than the time in which others wait for the renewal
    with Bench(redis_url, own_server.url, conf={"throttle_lease": lease}) as bench:
        limiter = Limiter(own_server.url, {"api": "100/s"})
        limiter["api"].pause(None)
        bench.start_workers(1, concurrency=1)
        bench.send("late_held", range(1))
        bench.until(lambda: limiter["api"].status().waiting == 1, "it waits in its line")
        limiter["api"].resume()
        bench.until_started("late_held", 1)
        own_server.signal(signal.SIGSTOP)
        bench.send("closed", range(1))
        bench.until(lambda: len(bench.rows("modes")) == 1, "an outage")
        back = time.time()  # before the signal: the worker may renew before this process goes on
        own_server.signal(signal.SIGCONT)
        with own_server.client() as client:
            bench.until(lambda: renewed_at(client, lease) > back, "the lease is renewed")
            assert renewed_at(client, lease) - back < tuning.RECLAIM_GRACE_SECONDS
        bench.let_go(1)
        bench.until(lambda: len(bench.rows("ends")) == 1, "it has ended")


def renewed_at(client: redis.Redis, lease: float) -> float:
    """Return when a worker last renewed the lease of its claims."""
    rows: Any = client.zrange("{throttle}:workers", 0, -1, withscores=True)
    return float(max(score for _, score in rows)) / 1e6 - lease


def seconds_of_plain_tasks(bench: Bench, numbers: range) -> float:
    """Send tasks without limits, and return the seconds until the last of them has started."""
    began = time.time()
    bench.send("plain", numbers)
    bench.until_started("plain", numbers.stop)
    return float(bench.starts("plain")[-1]["at"]) - began


@pytest.mark.thorough
def test_a_dead_line_stops_no_task_without_limits(redis_url: str, own_server: Server) -> None:
    proxy = Proxy(own_server.port)
    with Bench(redis_url, proxy.url) as bench:
        bench.start_workers(1)
        bench.send("early", range(3))
        bench.until_started("early", 3)
        normal = seconds_of_plain_tasks(bench, range(300))
        proxy.pull()
        bench.send("early", range(3, 50))
        # One call waits for its timeout, a second; no other does.
        assert seconds_of_plain_tasks(bench, range(300, 600)) < normal + 8
        proxy.plug_in()
        bench.until_started("early", 50)
        assert Counter(row["number"] for row in bench.starts("early")) == Counter(range(50))
    proxy.close()
