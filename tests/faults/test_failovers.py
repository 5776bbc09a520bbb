"""Sentinels let the replica take over: the master has died, whatever it had not passed on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.bench import Bench
from tests.faults.scale import moments, scaled
from tests.faults.verdict import Faults, Verdict, judge
from tests.servers.sentinel import Watched
from tests.servers.server import redis_command

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(600)]

RATE = 50

#: Seconds; longer than a busy machine keeps a process from renewing its leases.
LEASE = 6.0

CONF = {
    "throttle_lease": LEASE,
    "throttle_limits": {"closed": f"{RATE}/s outage closed"},
    "throttle_replicas": 1,
}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    command = redis_command()
    if command is None:
        pytest.skip("redis-server is not installed")
    watched = Watched(command, tmp_path)
    yield watched
    watched.stop()


def test_the_master_dies(
    redis_url: str, watched: Watched, conclude: Callable[[Verdict], None]
) -> None:
    dice, lost, failovers = moments("failovers"), [], scaled(10)
    tasks = range(failovers * RATE * 4)
    with Bench(redis_url, watched.url, conf=CONF, loglevel="WARNING") as bench:
        bench.start_workers(2)
        for batch in range(failovers):
            bench.send("closed", tasks[batch::failovers])
            time.sleep(dice.uniform(0.3, 1.0))
            watched.master.stop()
            began = time.time()
            watched.wait_for_failover()
            lost.append((began, time.time()))
            watched.heal()
        bench.until_started("closed", len(tasks), seconds=200)
        time.sleep(LEASE)
        starts = bench.starts("closed")
    name = "Sentinel failover"
    conclude(judge(name, tasks, starts, Faults({}, lost), rate=RATE, lease=LEASE))
