"""``throttle_waiting = "broker"``: those that may not run wait at the broker, each for its turn."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import Any

import pytest
import redis

from celery_throttle import Limiter
from tests.faults.bench import Bench
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.server import Server

pytestmark = pytest.mark.workers

BROKER = {"throttle_waiting": "broker"}


def check_runs(bench: Bench, task: str, count: int) -> list[float]:
    """Each ran once; gives when."""
    starts = bench.starts(task)
    assert Counter(row["number"] for row in starts) == Counter(range(count))
    return [float(row["at"]) for row in starts]


def test_each_has_its_turn_and_others_pass(redis_url: str) -> None:
    conf = {**BROKER, "throttle_limits": {"api": "20/s"}}
    with Bench(redis_url, redis_url, conf=conf) as bench:
        bench.start_workers(2)
        bench.send("early", range(120))
        bench.send("plain", range(50))
        bench.until_started("plain", 50)
        assert len(bench.starts("early")) < 100
        bench.until_started("early", 120)
        times = check_runs(bench, "early", 120)
        assert times[-1] - times[0] > 119 / 20 - 0.1
        with redis.Redis.from_url(redis_url) as client:
            assert not client.keys("{throttle}:line*")


@pytest.mark.thorough
def test_waits_longer_than_the_broker_waits_for_an_acknowledgement(redis_url: str) -> None:
    conf: dict[str, Any] = {
        **BROKER,
        "broker_transport_options": {"visibility_timeout": 2},
    }
    with Bench(redis_url, redis_url, conf=conf) as bench:
        limiter = Limiter(redis_url, {"api": "100/s"})
        limiter.register()
        bench.start_workers(2)
        began = time.time()
        limiter["api"].pause(7)
        bench.send("early", range(20))
        bench.send("late", range(20))
        bench.until_started("early", 20)
        bench.until_started("late", 20)
        time.sleep(2.5)  # for a second delivery to show
        assert min(check_runs(bench, "early", 20) + check_runs(bench, "late", 20)) > began + 7


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_rabbitmq_keeps_them_for_as_long(any_rabbitmq_url: str, redis_url: str, kind: str) -> None:
    """They go back to it twice, with delays of 3 s: each time through its queues of 2 s and 1 s."""
    bench = Bench(any_rabbitmq_url, redis_url, records=redis_url, conf=BROKER, queue_type=kind)
    with bench:
        bench.start_workers(1)
        limiter = Limiter(redis_url, {"api": "100/s"})
        limiter.register()
        began = time.time()
        limiter["api"].pause(4)
        bench.send("early", range(50))
        worker = bench.workers[0]
        bench.until(lambda: "received" in worker.log(), "tasks have come")
        bench.until(lambda: bench.stats(worker)["postponed"] == 0, "the broker has them all")
        while time.time() < began + 5:
            limiter["api"].pause(4)
            time.sleep(0.5)
        bench.until_started("early", 50)
        assert check_runs(bench, "early", 50)[0] > began + 4
        assert not any(row["headers"] for row in bench.starts("early")), "RabbitMQ added them"


@pytest.mark.rabbitmq
def test_what_was_sent_back_is_announced_once(rabbitmq_url: str, redis_url: str) -> None:
    with Bench(rabbitmq_url, redis_url, records=redis_url, conf=BROKER) as bench:
        bench.start_workers(1)
        limiter = Limiter(redis_url, {"api": "100/s"})
        limiter.register()
        limiter["api"].pause(4)
        bench.send("early", range(10))
        worker = bench.workers[0]
        bench.until(lambda: worker.log().count("received") == 10, "tasks have come")
        bench.until(lambda: bench.stats(worker)["postponed"] == 0, "the broker has them all")
        bench.until_started("early", 10)
        check_runs(bench, "early", 10)
        assert worker.log().count("received") == 10


@pytest.mark.rabbitmq
def test_a_task_that_rabbitmq_rejects_stays_in_the_worker(
    rabbitmq: RabbitMQ, redis_url: str
) -> None:
    """Its message is acknowledged, and nobody else has it."""
    conf = {**BROKER, "throttle_limits": {"api": "100/s"}}
    with Bench(rabbitmq.url, redis_url, records=redis_url, conf=conf) as bench:
        bench.start_workers(1)
        limiter = Limiter(redis_url, {"api": "100/s"})
        limiter.register()
        bench.send("inside", [0])
        bench.until_started("inside", 1)
        worker = bench.workers[0]
        with rabbitmq.full_queues(f"^{bench.queue}$"):
            limiter["api"].pause(1.9)
            bench.let_go(1)
            bench.until(lambda: "waits for limit" in worker.log(), "it has met the limit")
        bench.let_go(1)
        bench.until(lambda: bench.rows("ends"), "the end of its second run")


# RabbitMQ 4 counts prefetched messages for each consumer, and RabbitMQ 3 does with quorum queues.
@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.pools("prefork", "solo", "threads")
def test_those_that_wait_hold_no_prefetch_slots(
    any_rabbitmq_url: str, redis_url: str, kind: str, pool: str
) -> None:
    """When plain tasks run that were sent behind 400 limited ones, fewer than half of those have.

    If those that wait held slots, all but ten had.
    """
    conf = {**BROKER, "throttle_limits": {"api": "10/s"}}
    servers = {"records": redis_url, "queue_type": kind}
    with Bench(any_rabbitmq_url, redis_url, conf=conf, pool=pool, **servers) as bench:
        bench.start_workers(1)
        bench.send("early", range(400))
        bench.send("plain", range(20))
        bench.until_started("plain", 20)
        assert len(bench.starts("early")) < 200


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_each_runs_once_whose_queue_is_consumed_anew(
    any_rabbitmq_url: str, redis_url: str, kind: str
) -> None:
    conf = {**BROKER, "throttle_limits": {"api": "50/s"}}
    servers = {"records": redis_url, "queue_type": kind}
    with Bench(any_rabbitmq_url, redis_url, conf=conf, **servers) as bench:
        bench.start_workers(2)
        for number in range(100):
            bench.send("early", [number])
            bench.send("late", [number])
            bench.send("plain", [number])
        for task in ("early", "late", "plain"):
            bench.until_started(task, 100)
            check_runs(bench, task, 100)
        times = [row["at"] for task in ("early", "late") for row in bench.starts(task)]
        assert max(times) - min(times) > 199 / 50 - 0.1


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_worker_prefetches_few_of_the_others(
    any_rabbitmq_url: str, redis_url: str, kind: str
) -> None:
    """Two processes prefetch 8. Where a queue gets another consumer, it may be 24 for a moment."""
    conf = {**BROKER, "throttle_limits": {"api": "30/s"}}
    servers = {"records": redis_url, "queue_type": kind}
    with Bench(any_rabbitmq_url, redis_url, conf=conf, **servers) as bench:
        for number in range(60):
            bench.send("early", [number])
            bench.send("slow", [number])
        bench.start_workers(1)

        def received() -> int:
            lines = bench.workers[0].log().splitlines()
            return sum(".slow[" in line and line.endswith("received") for line in lines)

        bench.until(lambda: received() >= 6, "the worker has what it prefetches")
        time.sleep(3)  # for more to show: those that wait here have waited by then
        assert received() <= 24


@pytest.mark.thorough
def test_after_an_outage_each_is_decided_about_once_more(
    redis_url: str, own_server: Server
) -> None:
    """Not again and again, as long as it has to wait."""
    conf = {**BROKER, "throttle_limits": {"api": "1/h"}, "throttle_timeout": 0.3}
    with Bench(redis_url, own_server.url, records=redis_url, conf=conf) as bench:
        bench.start_workers(1)
        bench.send("early", range(4))
        bench.until_started("early", 1)
        bench.until(lambda: bench.stats(bench.workers[0])["postponed"] == 3, "the others wait")
        own_server.signal(signal.SIGSTOP)
        bench.until(lambda: len(bench.rows("modes")) == 1, "an outage")
        own_server.signal(signal.SIGCONT)
        bench.until(lambda: len(bench.rows("modes")) == 2, "its end")
        with own_server.client() as client:

            def count_calls() -> int:
                stats: Any = client.info("commandstats")
                return int(stats["cmdstat_evalsha"]["calls"])

            before, began = count_calls(), time.monotonic()
            time.sleep(1)
            a_second = (count_calls() - before) / (time.monotonic() - began)
        assert a_second < 20  # 1 for a poll
