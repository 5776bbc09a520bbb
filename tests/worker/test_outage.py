"""The server of the limits is lost, slow, or back, while workers run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.bench import Bench
from tests.servers import Server, valkey_command

pytestmark = pytest.mark.workers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Server]:
    server = Server(valkey_command(), tmp_path)
    yield server
    server.stop()


@pytest.fixture
def bench(redis_url: str, store: Server) -> Iterator[Bench]:
    with Bench(redis_url, store.url) as bench:
        yield bench


def test_workers_decide_alone_while_it_is_lost_and_return_when_it_is_back(
    bench: Bench, store: Server
) -> None:
    bench.start_workers(2)
    bench.send("early", range(20))
    bench.until_started("early", 20)
    store.stop()
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
    store.start()
    back = time.time()
    bench.until_started("closed", 3)
    assert bench.starts("closed")[0]["at"] - back < 5
    bench.until_started("early", 300)
    for task, count in (("early", 300), ("closed", 3), ("opened", 60), ("plain", 60)):
        assert Counter(row["number"] for row in bench.starts(task)) == Counter(range(count))
    assert [row["mode"] for row in bench.rows("modes")] == ["outage"] * 2 + ["normal"] * 2
    for worker in bench.workers:
        log = worker.log()
        assert log.count("decided by each of 2 workers alone") == 1
        assert log.count("is back after") == 1
        assert "Traceback" not in log
