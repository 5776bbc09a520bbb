"""The server of the limits is killed, forgets, or cannot be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.faults.bench import Bench
from tests.faults.proxy import Proxy
from tests.faults.scale import moments, scaled
from tests.faults.verdict import Faults, Verdict, judge
from tests.servers.server import Server

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(600)]

RATE, WORKERS, LEASE = 50, 2, 2.0
CONF = {
    "throttle_lease": LEASE,
    "throttle_limits": {"api": f"{RATE}/s", "closed": f"{RATE}/s outage closed"},
}


@contextmanager
def running(broker: str, store: str, task: str, count: int) -> Iterator[Bench]:
    """A bench whose workers have begun with so many tasks."""
    with Bench(broker, store, conf=CONF, loglevel="WARNING") as bench:
        bench.start_workers(WORKERS)
        bench.send(task, range(count))
        bench.until_started(task, 5)
        yield bench


@pytest.mark.parametrize("task", ["closed", "early"])
def test_killed_and_started_again(
    redis_url: str, durable: Server, conclude: Callable[[Verdict], None], task: str
) -> None:
    dice, lost, kills = moments(task), [], scaled(20 if task == "closed" else 5)
    tasks = range(kills * RATE)
    with running(redis_url, durable.url, task, len(tasks)) as bench:
        for _ in range(kills):
            time.sleep(dice.uniform(0.3, 1.2))
            durable.stop()
            began = time.time()
            time.sleep(dice.uniform(0.0, 1.0))
            durable.start()
            lost.append((began, time.time()))
        bench.until_started(task, len(tasks), seconds=300)
        time.sleep(LEASE)
        starts = bench.starts(task)
    # For each time that workers decided alone, their bursts and one of the server's, which knows
    # nothing of what started meanwhile.
    slack = kills * (WORKERS + 1) if task == "early" else 0
    name = f"server killed, {'closed' if task == 'closed' else 'local'}"
    faults = Faults({}, lost)
    conclude(judge(name, tasks, starts, faults, rate=RATE, slack=slack, lease=LEASE))


def test_scripts_flushed_and_clients_killed(
    redis_url: str, durable: Server, conclude: Callable[[Verdict], None]
) -> None:
    count, lost = scaled(100), []
    tasks = range(RATE * 15)
    with running(redis_url, durable.url, "closed", len(tasks)) as bench:
        with redis.Redis.from_url(durable.url) as client:
            for number in range(count):
                if number % 2:
                    client.script_flush()
                else:
                    client.client_kill_filter(_type="normal", skipme=True)
                    client.client_kill_filter(_type="pubsub", skipme=True)
                lost.append((time.time(), time.time()))
                time.sleep(0.1)
        bench.until_started("closed", len(tasks), seconds=120)
        starts = bench.starts("closed")
    name = "scripts flushed, clients killed"
    conclude(judge(name, tasks, starts, Faults({}, lost), rate=RATE, lease=LEASE))


@pytest.fixture
def proxy(durable: Server) -> Iterator[Proxy]:
    proxy = Proxy(durable.port)
    yield proxy
    proxy.close()


def test_the_line_to_it_is_cut(
    redis_url: str, proxy: Proxy, conclude: Callable[[Verdict], None]
) -> None:
    dice, lost = moments("cut"), []
    tasks = range(RATE * 15)
    with running(redis_url, proxy.url, "closed", len(tasks)) as bench:
        for _ in range(scaled(50)):
            time.sleep(dice.uniform(0.0, 0.3))
            proxy.cut()
            lost.append((time.time(), time.time()))
        bench.until_started("closed", len(tasks), seconds=120)
        starts = bench.starts("closed")
    conclude(judge("line cut", tasks, starts, Faults({}, lost), rate=RATE, lease=LEASE))


def test_the_line_to_it_is_dead(
    redis_url: str, proxy: Proxy, conclude: Callable[[Verdict], None]
) -> None:
    lost, count = [], scaled(3)
    tasks = range(RATE * 10 * count)
    with running(redis_url, proxy.url, "closed", len(tasks)) as bench:
        bench.send("plain", range(200))
        for _ in range(count):
            time.sleep(3)
            proxy.pull()
            began = time.time()
            time.sleep(4)
            proxy.plug_in()
            lost.append((began, time.time()))
        bench.until_started("closed", len(tasks), seconds=120)
        starts = bench.starts("closed")
        plain = bench.starts("plain")
    assert len(plain) == 200
    conclude(judge("line dead for 4 s", tasks, starts, Faults({}, lost), rate=RATE, lease=LEASE))


def seconds_of_plain_tasks(bench: Bench, numbers: range) -> float:
    began = time.time()
    bench.send("plain", numbers)
    bench.until_started("plain", numbers.stop)
    return time.time() - began


def test_it_is_slow(redis_url: str, proxy: Proxy, conclude: Callable[[Verdict], None]) -> None:
    half = scaled(200)
    with running(redis_url, proxy.url, "closed", half) as bench:
        usual = seconds_of_plain_tasks(bench, range(500))
        proxy.delay = 0.025  # each way
        bench.send("closed", range(half, 2 * half))
        slow = seconds_of_plain_tasks(bench, range(500, 1000))
        proxy.delay = 0.0
        bench.until_started("closed", 2 * half, seconds=120)
        starts = bench.starts("closed")
    # They have half of a worker's time at least; the rest is for a machine that does other things.
    assert slow < 6 * usual + 2, "tasks without limits were stopped"
    name, sent = "50 ms a call", range(2 * half)
    conclude(judge(name, sent, starts, Faults({}, []), rate=RATE, lease=LEASE))
