"""Brokers are killed and started again, while tasks wait and run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.faults.bench import Bench
from tests.faults.scale import moments, scaled
from tests.faults.verdict import Faults, Verdict, judge
from tests.servers.rabbitmq import RabbitMQ, rabbitmq4_command, rabbitmq_command
from tests.servers.server import Server

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(600)]

RATE = 50

#: Seconds; longer than a busy machine keeps a process from renewing its leases.
LEASE = 6.0

CONF = {
    "throttle_lease": LEASE,
    "throttle_limits": {"api": f"{RATE}/s"},
    "broker_connection_max_retries": None,
}


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[RabbitMQ]:
    command = rabbitmq_command()
    if command is None:
        pytest.skip("rabbitmq-server is not installed")
    rabbit = RabbitMQ(command, tmp_path)
    yield rabbit
    rabbit.close()


def restart(
    bench: Bench, broker: Server | RabbitMQ, task: str, times: int, pause: float
) -> tuple[range, Faults]:
    """Kill the broker again and again; a third of the tasks waits in lines by then."""
    dice, lost = moments("brokers"), []
    tasks = range(times * RATE * 3)
    bench.start_workers(2)
    bench.send(task, tasks)
    for _ in range(times):
        time.sleep(dice.uniform(0.5, 1.5))
        broker.stop()
        began = time.time()
        time.sleep(pause)
        broker.start()
        lost.append((began, time.time()))
    bench.until_started(task, len(tasks), seconds=200)
    time.sleep(2 * LEASE)
    return tasks, Faults({}, lost)


@pytest.mark.rabbitmq
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_rabbitmq(
    redis_url: str, rabbit: RabbitMQ, conclude: Callable[[Verdict], None], kind: str
) -> None:
    bench = Bench(
        rabbit.url, redis_url, records=redis_url, conf=CONF, queue_type=kind, loglevel="WARNING"
    )
    with bench:
        tasks, faults = restart(bench, rabbit, "late", scaled(3), pause=0.5)
        starts = bench.starts("late")
    name = f"RabbitMQ killed, {kind} queue"
    conclude(judge(name, tasks, starts, faults, rate=RATE, lease=LEASE))


@pytest.mark.rabbitmq
def test_rabbitmq_has_the_tasks_while_the_limits_are_lost(
    request: pytest.FixtureRequest,
    redis_url: str,
    durable: Server,
    conclude: Callable[[Verdict], None],
) -> None:
    """RabbitMQ 3 and 4, with both kinds of queues, get each task several times, for 5 s or more."""
    nodes = ["rabbitmq_url", *(["rabbitmq4_url"] if rabbitmq4_command() else [])]
    urls = [request.getfixturevalue(node) for node in nodes]
    conf = CONF | {"throttle_limits": {"api": "20/s", "closed": f"{RATE}/s outage closed"}}
    options: dict[str, Any] = {"records": redis_url, "conf": conf, "loglevel": "WARNING"}
    with ExitStack() as stack:
        benches = [
            stack.enter_context(Bench(url, durable.url, queue_type=kind, **options))
            for url, kind in product(urls, ("classic", "quorum"))
        ]
        workers = [bench.start_worker() for bench in benches]
        for worker in workers:
            worker.wait_until_ready()
        for bench in benches:
            bench.until_each_knows_all(len(workers))
        tasks = range(100 * len(benches))
        durable.stop()
        began = time.time()
        for number, bench in enumerate(benches):
            for task in ("closed", "early"):
                bench.send(task, tasks[100 * number : 100 * (number + 1)])
        time.sleep(12)
        durable.start()
        lost = Faults({}, [(began, time.time())])
        for task in ("closed", "early"):
            benches[0].until_started(task, len(tasks), seconds=200)
        time.sleep(LEASE)
        closed, early = (benches[0].starts(task) for task in ("closed", "early"))
    name = "RabbitMQ, server lost for 12 s, {}".format
    conclude(judge(name("closed"), tasks, closed, lost, rate=RATE, lease=LEASE))
    slack = len(workers) + 1  # see `test_store.py`
    conclude(judge(name("local"), tasks, early, lost, rate=20, slack=slack, lease=LEASE))


def test_redis(redis_url: str, durable: Server, conclude: Callable[[Verdict], None]) -> None:
    bench = Bench(durable.url, redis_url, records=redis_url, conf=CONF, loglevel="WARNING")
    with bench:
        tasks, faults = restart(bench, durable, "late", scaled(5), pause=0.5)
        starts = bench.starts("late")
    name = "Redis as the broker killed"
    conclude(judge(name, tasks, starts, faults, rate=RATE, lease=LEASE))
