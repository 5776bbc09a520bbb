"""Workers are killed at random moments."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.bench import Bench
from tests.faults.scale import moments, scaled
from tests.faults.verdict import Faults, Verdict, judge

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(900)]

KILLS = scaled(100)
TASKS = scaled(10_000)
RATE = 100

#: Of tasks that a killed worker held: longer than a busy machine keeps a process from renewing it.
LEASE = 6.0

#: Tasks at most that a worker admits at its gate at once, and has not started.
ADMITTED = 8


@pytest.mark.rabbitmq
def test_killed_again_and_again(
    rabbitmq_url: str, redis_url: str, conclude: Callable[[Verdict], None]
) -> None:
    """RabbitMQ: kombu's Redis transport itself loses what it hands to a worker that is killed."""
    dice, killed = moments("kills"), {}
    conf = {"throttle_lease": LEASE, "throttle_limits": {"api": f"{RATE}/s"}}
    bench = Bench(rabbitmq_url, redis_url, records=redis_url, conf=conf, loglevel="WARNING")
    with bench:
        bench.send("late", range(TASKS))
        bench.start_workers(3)
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.2, 1.4))
            worker = dice.choice(bench.workers)
            worker.kill()
            killed[worker.hostname] = time.time()
            bench.replace(worker)
        bench.until_started("late", TASKS, seconds=600)
        time.sleep(LEASE)
        bench.check_counters("api", "late", KILLS * ADMITTED)
        conclude(
            judge(
                "worker killed",
                range(TASKS),
                bench.starts("late"),
                Faults(killed, []),
                rate=RATE,
                lease=LEASE,
            )
        )
