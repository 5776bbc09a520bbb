"""The clock of the server of the limits is set while tasks wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from celery_throttle import Limiter
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.keys import Keys
from tests.faults.bench import Bench
from tests.faults.verdict import Faults, judge
from tests.servers.clock import LIBRARY, ServerWithClock
from tests.servers.server import valkey_command

pytestmark = [
    pytest.mark.workers,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed"),
]

HOUR = 3600
RATE = 20
LEASE = 2.0
CONF = {"throttle_lease": LEASE, "throttle_limits": {"api": f"{RATE}/s", "slots": "2 at once"}}


@pytest.fixture
def clock_server(tmp_path: Path) -> Iterator[ServerWithClock]:
    server = ServerWithClock(valkey_command(), tmp_path)
    yield server
    server.stop()


@pytest.fixture
def bench(redis_url: str, clock_server: ServerWithClock) -> Iterator[Bench]:
    with Bench(redis_url, clock_server.url, conf=CONF) as bench:
        bench.start_workers(2)
        yield bench


@pytest.mark.thorough
def test_lines_go_on_when_the_clock_steps_back(bench: Bench, clock_server: ServerWithClock) -> None:
    tasks = range(120)
    bench.send("early", tasks)
    bench.until_started("early", 20)
    clock_server.set_clock(-HOUR)
    bench.until_started("early", 60)
    clock_server.set_clock(-HOUR - 12)
    bench.until_started("early", len(tasks))
    verdict = judge("", tasks, bench.starts("early"), Faults({}, []), rate=RATE, slack=2)
    assert (verdict.lost, verdict.duplicated, verdict.over) == (0, 0, 0)


@pytest.mark.thorough
def test_a_pause_lasts_no_longer_when_the_clock_steps_back(
    bench: Bench, clock_server: ServerWithClock
) -> None:
    limiter = Limiter(clock_server.url, {"api": f"{RATE}/s"})
    limiter["api"].pause(4)
    bench.send("early", range(10))
    clock_server.set_clock(-HOUR)
    began = time.monotonic()
    bench.until_started("early", 10)
    assert time.monotonic() - began > 2  # it is paused still
    limiter.store.close()


@pytest.mark.thorough
def test_claims_of_a_dead_worker_come_back_though_the_clock_steps_back(
    bench: Bench, clock_server: ServerWithClock
) -> None:
    bench.send("held", range(2))
    bench.until_started("held", 2)
    bench.send("slotted", range(4))
    limiter = Limiter(clock_server.url, {"slots": "2 at once"})
    bench.until(lambda: limiter["slots"].forecast().waiting == 4, "all of them wait")
    limiter.store.close()
    for worker in bench.workers:
        worker.kill()
    clock_server.set_clock(-HOUR)
    bench.start_worker()
    bench.until_started("slotted", 4)


@pytest.mark.thorough
def test_a_clock_that_jumps_forward_gives_each_slot_once_more(
    bench: Bench, clock_server: ServerWithClock
) -> None:
    bench.start_worker(concurrency=8).wait_until_ready()
    bench.send("held", range(8))
    bench.until_started("held", 2)
    clock_server.set_clock(24 * HOUR)
    bench.until(
        lambda: _holders(clock_server) >= 2, "the slots of the tasks that run are known again"
    )
    assert 2 <= len(bench.starts("held")) <= 4
    bench.let_go(8)
    bench.until(lambda: len(bench.rows("ends")) == 8, "all have ended")
    assert _most_at_once(bench) <= 4


def _holders(server: ServerWithClock) -> int:
    with server.client() as client:
        return int(client.zcard(Keys().entries(LimitRef("slots", None))))


def _most_at_once(bench: Bench) -> int:
    changes = [(row["at"], 1) for row in bench.starts("held")]
    changes += [(row["at"], -1) for row in bench.rows("ends")]
    return max(accumulate(change for _, change in sorted(changes)))
