"""A server that does not answer holds up the tasks of its own shards, and no others."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
import redis
from celery import Celery

from celery_throttle import Limiter
from celery_throttle.worker.tuning import SLOW_CALL_SECONDS
from tests.faults.bench import Bench as Limits
from tests.faults.proxy import Proxy
from tests.servers.server import Server, wait_until
from tests.shards import shard_limiter
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

#: How much later (s) a task of another shard may start than without the fault.
LATE = 0.15
STOPS = 5
LIMITS = {"mail": "1000/s burst 1000", "erp": "40/s burst 1", "tenant": "1/h"}


class Bench:
    """A worker with two shards, on servers of their own."""

    def __init__(self, home: Server, erp: Server, start_worker: StartWorker) -> None:
        self.erp = erp
        env = {
            "HOME_URL": home.url,
            "SHARDS": json.dumps({"erp": {"limits": ["erp"], "url": erp.url}}),
            "LIMITS": json.dumps(LIMITS),
        }
        self._celery = Celery("sharded", broker=home.url, set_as_current=False)
        self._broker: Any = redis.Redis.from_url(home.url)
        start_worker("tests.apps.sharded", home.url, env=env)
        self.sent = 0

    def send(self, task: str, argument: float) -> None:
        self._celery.send_task(f"tests.apps.sharded.{task}", (argument,))

    def send_erp(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.send("erp", number)
        self.sent += count

    def starts(self) -> Counter[int]:
        """Return how often each task of the shard has started."""
        return Counter(map(int, self._broker.lrange("sharded:erp", 0, -1)))

    def modes(self) -> list[bytes]:
        found: list[bytes] = self._broker.lrange("sharded:modes", 0, -1)
        return found

    def delays(self, kind: str) -> list[float]:
        return [float(row) for row in self._broker.lrange(f"sharded:{kind}:delays", 0, -1)]

    def longest_delays(self, seconds: float) -> dict[str, float]:
        """Send tasks of both shards and without limits; return the longest delays of the others."""
        before = {kind: len(self.delays(kind)) for kind in ("plain", "mail")}
        ends_at, count = time.time() + seconds, 0
        while time.time() < ends_at:
            for kind in before:
                self.send(f"timed_{kind}", time.time())
            self.send_erp(1)
            count += 1
            time.sleep(0.08)
        for kind, number in before.items():
            wait_until(lambda: len(self.delays(kind)) == number + count, f"all of {kind}")  # noqa: B023
        return {kind: max(self.delays(kind)[number:]) for kind, number in before.items()}

    def count(self, name: str) -> int:
        return int(self._broker.llen(f"sharded:{name}"))

    def end_rejecting(self, end: str) -> None:
        """Let the task end that may reject its message."""
        self._broker.rpush("sharded:ends", end)

    def stop_server(
        self,
        seconds: float,
        *,
        until_outage: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """Stop the server of the shard for some seconds; return the longest delays meanwhile."""
        before = len(self.modes())
        self.erp.signal(signal.SIGSTOP)
        try:
            then()
            longest = self.longest_delays(seconds)
            if until_outage:
                wait_until(lambda: len(self.modes()) > before, "an outage")
            return longest
        finally:
            self.erp.signal(signal.SIGCONT)

    def close(self) -> None:
        self._broker.close()
        self._celery.close()


@pytest.fixture
def bench(own_server: Server, erp_server: Server, start_worker: StartWorker) -> Iterator[Bench]:
    bench = Bench(own_server, erp_server, start_worker)
    bench.send_erp(10)
    wait_until(lambda: len(bench.starts()) == 10, "the first tasks")
    yield bench
    bench.close()


def check(bench: Bench, calm: list[dict[str, float]], stops: list[dict[str, float]]) -> None:
    """Check that no other task was late, and that each task of the shard runs once."""
    for kind in ("plain", "mail"):
        usual = median(one[kind] for one in calm)
        assert median(one[kind] for one in stops) < usual + LATE, (calm, stops)
    wait_until(lambda: len(bench.starts()) == bench.sent, "all tasks of the shard")
    assert set(bench.starts().values()) == {1}


@pytest.mark.thorough
def test_a_server_that_stalls_holds_up_no_other_task(bench: Bench) -> None:
    """As one does that forks to save its data. It is no outage."""
    calm, stops = [], []
    for _ in range(STOPS):
        stops.append(bench.stop_server(0.4))
        calm.append(bench.longest_delays(0.4))
    check(bench, calm, stops)
    assert bench.modes() == []


def test_a_server_that_is_lost_holds_up_no_other_task(bench: Bench) -> None:
    """Nor does the end of the outage."""
    calm, stops = [], []
    for _ in range(3):
        stops.append(bench.stop_server(1.5, until_outage=True))
        wait_until(lambda: bench.modes()[-1].startswith(b"normal"), "the end of the outage")
        calm.append(bench.longest_delays(1.5))
    check(bench, calm, stops)


@pytest.mark.thorough
def test_a_task_that_goes_back_to_its_line_while_its_server_stalls_holds_up_no_other(
    bench: Bench,
) -> None:
    """It rejects its message, which is acknowledged late."""
    limit = shard_limiter(bench.erp.url, "erp", {"erp": LIMITS["erp"]})["erp"]
    calm, stops = [], []
    for number in range(3):
        limit.pause(None)
        bench.send("rejecting", number)
        wait_until(lambda: limit.status().waiting == 1, "it waits in its line")
        limit.resume()
        wait_until(lambda: bench.count("rejecting") == 2 * number + 1, "its first start")  # noqa: B023
        calm.append(bench.longest_delays(0.4))
        stops.append(bench.stop_server(0.4, then=lambda: bench.end_rejecting("reject")))
        wait_until(lambda: bench.count("rejecting") == 2 * number + 2, "its second start")  # noqa: B023
        bench.end_rejecting("end")
        wait_until(lambda: len(bench.starts()) == bench.sent, "all others of the shard")
    check(bench, calm, stops)


@pytest.mark.thorough
def test_a_slow_server_lets_no_task_wait_in_a_line_whose_limit_has_room(
    redis_url: str, own_server: Server, proxy: Proxy
) -> None:
    """The calls take longer than the loop likes, so tasks give up their processes meanwhile."""
    conf = {"throttle_limits": {"api": "1000/s burst 1"}}
    with Limits(redis_url, proxy.url, conf=conf) as limits:
        limits.send("early", range(60))
        proxy.delay = 1.5 * SLOW_CALL_SECONDS
        limits.start_workers(1)
        limits.until_started("early", 60)
    assert Limiter(own_server.url, {"api": "1000/s burst 1"})["api"].status().totals.parked == 0
