"""The clocks of workers are an hour off, and moved while they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.bench import Bench
from tests.faults.scale import scaled
from tests.faults.verdict import Faults, Verdict, judge
from tests.servers.clock import LIBRARY, faked, set_offset

pytestmark = [pytest.mark.faults, pytest.mark.workers, pytest.mark.timeout(300)]

RATE = 50

#: Seconds; longer than a busy machine keeps a process from renewing its leases.
LEASE = 6.0

#: Seconds that a task takes: neither worker alone can start RATE tasks a second.
LENGTH = 0.03


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_is_moved(
    redis_url: str, tmp_path: Path, conclude: Callable[[Verdict], None], hours: int
) -> None:
    tasks, moved = range(scaled(600)), []
    file = tmp_path / "clock"
    set_offset(file, 0)
    conf = {"throttle_lease": LEASE, "throttle_limits": {"api": f"{RATE}/s"}}
    with Bench(redis_url, redis_url, conf=conf, loglevel="WARNING", concurrency=1) as bench:
        bench.start_worker()
        bench.start_worker(env=faked(file))
        for worker in bench.workers:
            worker.wait_until_ready()
        bench.send("early", tasks, LENGTH)
        bench.until_started("early", 20)
        for offset in (3600 * hours, 0, 3600 * hours):
            set_offset(file, offset)
            moved.append((time.time(), time.time()))
            time.sleep(1.5)
        bench.until_started("early", len(tasks))
        starts = bench.starts("early")
    assert max(abs(row["clock"] - row["at"]) for row in starts) > 3500
    name = f"clock moved by {hours:+d} h"
    conclude(judge(name, tasks, starts, Faults({}, moved), rate=RATE, lease=LEASE))
