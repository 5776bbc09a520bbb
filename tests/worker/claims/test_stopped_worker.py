"""A worker is stopped (SIGSTOP) for longer than its lease: others take it for dead."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from celery_throttle.operations.waiting import requeue_call
from celery_throttle.store.keys import Keys
from tests.faults.bench import Bench
from tests.faults.proxy import Proxy
from tests.servers.server import Server
from tests.workers import Worker

pytestmark = pytest.mark.workers

LEASE = 3.0


@pytest.fixture
def bench(redis_url: str, proxy: Proxy) -> Iterator[Bench]:
    conf = {"throttle_lease": LEASE, "throttle_timeout": 30}
    with Bench(redis_url, proxy.url, conf=conf) as bench:
        yield bench


def until_in_line(bench: Bench, limiter: Limiter, count: int) -> None:
    bench.until(lambda: limiter["api"].status().waiting == count, "all wait in their lines")


def stop(*workers: Worker) -> None:
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)


def resume(*workers: Worker) -> None:
    for worker in workers:
        os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.thorough
def test_it_does_not_start_what_it_claimed_before(
    bench: Bench, own_server: Server, proxy: Proxy
) -> None:
    """It is stopped while the reply is on its way, and its claims are requeued meanwhile."""
    limiter = Limiter(own_server.url, {"api": "100/s"})
    limiter["api"].pause(None)
    bench.start_workers(1)
    (worker,) = bench.workers
    bench.send("early", [0])
    until_in_line(bench, limiter, 1)
    proxy.hold_replies(b"tests.faults.app.early")
    limiter["api"].resume()
    with own_server.client() as client:
        bench.until(lambda: client.exists(Keys().workers), "the task is claimed")
        stop(worker)
        proxy.pass_replies()
        bench.until(lambda: lease_end(client, worker) < time.time(), "its lease has run out")
        name = str(next(iter(client.zrange(Keys().workers, 1, 1))).decode())
    assert limiter.store.run(requeue_call(limiter.keys, name, "dead", 1)) == 0
    until_in_line(bench, limiter, 1)
    resume(worker)
    bench.until_started("early", 1)
    bench.send("early", [1])
    bench.until_started("early", 2)
    assert [row["number"] for row in bench.starts("early")] == [0, 1]


@pytest.mark.thorough
def test_it_takes_no_other_for_dead_that_was_stopped_as_well(
    bench: Bench, own_server: Server
) -> None:
    """As where a machine with several workers is suspended. The first that is back has a process
    free, and polls before the other can renew its lease."""
    limiter = Limiter(own_server.url, {"api": "100/s"})
    limiter["api"].pause(None)
    bench.start_workers(2, concurrency=1, env={"FAULTS_GRACE": "60"})
    bench.send("late_held", [0])
    until_in_line(bench, limiter, 1)
    limiter["api"].resume()
    bench.until_started("late_held", 1)
    (start,) = bench.starts("late_held")
    busy, idle = sorted(bench.workers, key=lambda worker: worker.hostname != start["worker"])
    stop(busy, idle)
    with own_server.client() as client:
        bench.until(lambda: lease_end(client, busy) < time.time(), "the lease has run out")
        bench.until(lambda: next_poll(client) < time.time(), "none polls")
        resume(idle)
        bench.until(lambda: next_poll(client) > time.time(), "it has polled")
        resume(busy)
        bench.until(lambda: lease_end(client, busy) > time.time(), "the other is back")
    bench.let_go(1)
    bench.until(lambda: len(bench.rows("ends")) == 1, "it has ended")
    assert len(bench.starts("late_held")) == 1
    assert "is gone" not in idle.log()


@pytest.mark.thorough
def test_a_solo_worker_reports_a_start_before_the_task_ends(
    bench: Bench, own_server: Server
) -> None:
    """Its loop stands still meanwhile. If it died, the task would run again."""
    limiter = Limiter(own_server.url, {"slots": "4 at once"})
    limiter["slots"].pause(None)
    conf = {"throttle_lease": 200}  # a lease is renewed after half of that
    bench.start_workers(1, pool="solo", env={"FAULTS_CONF": json.dumps(conf)})
    bench.send("held", [0])
    bench.until(lambda: limiter["slots"].status().waiting == 1, "it waits in its line")
    limiter["slots"].resume()
    bench.until_started("held", 1)
    with own_server.client() as client:
        bench.until(lambda: not client.exists(Keys().workers), "its claim is settled")
    assert bench.rows("ends") == []
    bench.let_go(1)
    bench.until(lambda: len(bench.rows("ends")) == 1, "it has ended")


def test_it_renews_leases_after_an_outage_while_it_shuts_down(
    redis_url: str, own_server: Server, proxy: Proxy
) -> None:
    """Its running task would run twice if another worker took it for dead."""
    limiter = Limiter(own_server.url, {"api": "100/s"})
    limiter["api"].pause(None)
    conf = {"throttle_lease": LEASE, "throttle_timeout": 0.5}
    with Bench(redis_url, proxy.url, conf=conf) as bench, own_server.client() as client:
        bench.start_workers(1)
        (worker,) = bench.workers
        bench.send("late_held", [0])
        until_in_line(bench, limiter, 1)
        limiter["api"].resume()
        bench.until_started("late_held", 1)
        os.kill(worker.pid, signal.SIGTERM)
        members = Keys().membership
        bench.until(lambda: not client.zcount(members, 1, "+inf"), "it has left the others")
        proxy.refuse()
        bench.until(lambda: lease_end(client, worker) < time.time(), "its lease has run out")
        proxy.accept()
        bench.until(lambda: lease_end(client, worker) > time.time(), "it is renewed", 20)
        bench.let_go(1)
        bench.until(lambda: not client.exists(Keys().workers), "its claim is settled")


def lease_end(client: redis.Redis, worker: Worker) -> float:
    """Return when the lease of a worker with claims ends: a time of day in seconds; else 0."""
    rows: Any = client.zrange(Keys().workers, "(0", "+inf", byscore=True, withscores=True)
    return max((end / 1e6 for name, end in rows if worker.hostname in name.decode()), default=0.0)


def next_poll(client: redis.Redis) -> float:
    """Return when the next poll of a worker is due: a time of day in seconds; 0 if none is."""
    polls: list[Any] = [client.zrange(key, -1, -1, withscores=True) for key in poll_keys(client)]
    return max((at / 1e6 for rows in polls for _, at in rows), default=0.0)


def poll_keys(client: redis.Redis) -> list[Any]:
    keys: Any = client.keys("{throttle}:polls:*")
    return list(keys)
