"""Workers that start during an outage: how many other workers do they assume?"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from celery_throttle import Limiter
from tests.faults.bench import Bench
from tests.servers.server import Server
from tests.workers import Worker

pytestmark = pytest.mark.workers

RATE = 4.0
CONF: dict[str, Any] = {"throttle_lease": 1.5, "throttle_limits": {"api": "4/s"}}
WINDOW = 5.0


def most(seconds: float, workers: int) -> float:
    """Return how many tasks may start: the rate, and a unit for each worker."""
    return RATE * seconds + workers


def starts_in(bench: Bench, seconds: float) -> int:
    """Return the number of starts of ``early`` in some seconds from the first one on."""
    bench.until_started("early", 1)
    first = bench.starts("early")[0]["at"]
    bench.until(lambda: bench.now() > first + seconds, "the time is over")
    return sum(row["at"] <= first + seconds for row in bench.starts("early"))


def log_lines(worker: Worker, text: str) -> list[str]:
    return [line for line in worker.log().splitlines() if text in line]


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_they_assume_the_configured_number(redis_url: str, own_server: Server) -> None:
    own_server.stop()
    with Bench(redis_url, own_server.url, conf={**CONF, "throttle_outage_workers": 3}) as bench:
        bench.start_workers(3)
        bench.send("early", range(100))
        assert 3 <= starts_in(bench, WINDOW) <= most(WINDOW, 3)
        for worker in bench.workers:
            assert len(log_lines(worker, "enforces 1/3 of each limit")) == 1


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_a_worker_that_knows_no_number_waits_for_the_grace_period(
    redis_url: str, own_server: Server
) -> None:
    grace = 6.0
    own_server.stop()
    with Bench(redis_url, own_server.url, conf={**CONF, "throttle_outage_grace": grace}) as bench:
        began = time.time()
        bench.start_workers(2)
        bench.send("early", range(40))
        bench.send("closed", range(2))
        bench.send("opened", range(20))
        bench.send("plain", range(20))
        bench.until_started("opened", 20)
        bench.until_started("plain", 20)
        first = min(row["at"] for row in bench.rows("modes"))
        bench.until_started("early", 3)
        assert bench.starts("early")[0]["at"] >= first + grace - 0.1
        assert first >= began
        assert bench.starts("closed") == []
        for worker in bench.workers:
            [line] = log_lines(worker, "OUTAGE: ")
            assert re.search(r"nothing with a limit starts here before \d\d:\d\d:\d\d", line)
            assert "the whole of each limit" in line
            assert "throttle_outage_workers" in line


@pytest.mark.thorough
def test_the_wait_ends_when_the_server_reports_the_number(
    redis_url: str, own_server: Server
) -> None:
    own_server.stop()
    with Bench(redis_url, own_server.url, conf={**CONF, "throttle_outage_grace": 600}) as bench:
        bench.start_workers(2)
        bench.send("early", range(8))
        bench.until(lambda: len(bench.rows("modes")) == 2, "both know that it is lost")
        assert bench.starts("early") == []
        own_server.start()
        Limiter(own_server.url, {"api": "4/s"}).register()
        bench.until_started("early", 8)
        assert [bench.stats(worker)["workers"] for worker in bench.workers] == [2, 2]
