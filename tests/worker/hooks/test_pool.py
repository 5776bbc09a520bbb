"""What differs from pool to pool: how soon after its admission a task starts, and who is next."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection

from celery_throttle import Limiter
from tests.apps import pools
from tests.servers.server import Server, wait_until
from tests.worker.conftest import SIZES
from tests.workers import StartWorker

pytestmark = pytest.mark.workers

SECONDS = 30

#: Seconds: 20 ms by design, and the rest for a machine that does other things as well.
LATE = 0.25

#: A machine that stands still between admissions and starts makes one attempt late, a fault each.
ATTEMPTS = 3


class Stage:
    """Tasks for one worker, and what they wrote down."""

    def __init__(self, url: str, broker: str = "", options: dict[str, str] | None = None) -> None:
        self.client = redis.Redis.from_url(url)
        self.limiter = Limiter(url, pools.LIMITS)
        self.broker, self.options = broker or url, options

    def send(self, task: Any, numbers: range, seconds: float = 0.0, keys: int = 0) -> None:
        with Connection(self.broker, transport_options=self.options) as connection:
            for number in numbers:
                key = (number % keys,) if keys else ()
                task.apply_async((number, seconds, *key), connection=connection)

    def starts(self, numbers: range) -> list[tuple[float, int]]:
        """When each of some tasks began, in order."""
        rows: Any = self.client.lrange("pools-starts", 0, -1)
        found = [(float(at), int(number)) for number, at in (row.split() for row in rows)]
        return sorted((at, number) for at, number in found if number in numbers)

    def until_begun(self, numbers: range, seconds: float = SECONDS) -> list[tuple[float, int]]:
        what = f"{len(numbers)} tasks began"
        wait_until(lambda: len(self.starts(numbers)) >= len(numbers), what, seconds)
        return self.starts(numbers)

    def close(self) -> None:
        self.client.delete("pools-starts", "pools-end")
        self.client.close()
        self.limiter.store.close()


@pytest.fixture
def stage(redis_url: str) -> Iterator[Stage]:
    stage = Stage(redis_url)
    yield stage
    stage.close()


@pytest.fixture
def worker(redis_url: str, start_worker: StartWorker, pool: str) -> None:
    env = {"THROTTLE_URL": redis_url}
    start_worker("tests.apps.pools", redis_url, pool=pool, concurrency=SIZES[pool], env=env)


def until(true: Callable[[], Any], what: str) -> None:
    wait_until(true, what, SECONDS)


def late(starts: Sequence[tuple[float, int]], rate: float, burst: int = 1) -> float:
    """Seconds that some start came after its admission at least, if the limit was kept.

    It is how much longer the limit needs for the starts from any to any later one than they took.
    """
    ahead = [number / rate - at for number, (at, _) in enumerate(starts)]
    most = max(one - min(ahead[: number + 1]) for number, one in enumerate(ahead))
    return most - (burst - 1) / rate


@pytest.mark.usefixtures("worker")
def test_a_line_drains_at_its_rate_and_each_task_runs_once(stage: Stage) -> None:
    tasks = range(60)
    stage.send(pools.paced, tasks)
    stage.until_begun(tasks)
    time.sleep(0.3)  # for a second delivery to show
    starts = stage.starts(tasks)
    assert Counter(number for _, number in starts) == Counter(tasks)
    assert late(starts, 50) < LATE


@pytest.mark.usefixtures("worker")
def test_quota_is_taken_when_there_is_a_process(stage: Stage, pool: str) -> None:
    """Not for tasks that come while others fill the pool: with the next they would be too many."""
    first = range(999, 1000)
    stage.send(pools.paced, first)  # the first calls take longer
    stage.until_begun(first)
    delays = (late_after_busy_tasks(stage, pool, 100 * number) for number in range(ATTEMPTS))
    assert any(delay < LATE for delay in delays)


def late_after_busy_tasks(stage: Stage, pool: str, number: int) -> float:
    busy, tasks = range(number, number + SIZES[pool]), range(number + 50, number + 80)
    stage.limiter["bursty"].reset()
    stage.send(pools.plain, busy, 1.0)
    stage.send(pools.bursty, tasks)
    return late(stage.until_begun(tasks), 10, burst=12)


@pytest.mark.thorough
@pytest.mark.usefixtures("worker")
def test_a_line_has_its_turn_among_tasks_without_limits(stage: Stage, pool: str) -> None:
    line, others = range(10), range(100, 100 + 60 * SIZES[pool])
    busy = range(1000, 1000 + SIZES[pool])
    stage.limiter["paced"].pause(3600)
    stage.send(pools.paced, line)
    until(lambda: stage.client.hlen("{throttle}:messages:redis/0/pools") == len(line), "all wait")
    stage.send(pools.stay, busy)
    stage.until_begun(busy)
    stage.send(pools.plain, others, 0.05)
    stage.limiter["paced"].reset()
    stage.client.set("pools-end", 1)
    assert stage.until_begun(line)[-1] < stage.until_begun(others)[-1]


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("worker")
def test_many_keys_use_their_quota(stage: Stage) -> None:
    """The loop has a timer for each task that is due: it never waits while one is.

    Nor does it wait while tasks join their lines. The machine's speed is that of plain tasks.
    """
    keys, each, rate = 100, 6, 2
    takes = speed(stage, keys * each)
    began, tasks = time.time(), range(keys * each)
    stage.send(pools.keyed, tasks, keys=keys)
    assert stage.until_begun(tasks, 120)[-1][0] - began < 3 * ((each - 1) / rate + takes)


@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("worker")
def test_many_keys_that_are_due_at_once(stage: Stage) -> None:
    """Each claim hands out several tasks, for each of which the loop has a timer."""
    tasks = range(600)
    takes = speed(stage, len(tasks))
    stage.limiter["keyed"].pause(3600)
    stage.send(pools.keyed, tasks, keys=len(tasks))
    until(lambda: stage.client.hlen("{throttle}:messages:redis/0/pools") == len(tasks), "all wait")
    began = time.time()
    stage.limiter["keyed"].reset()
    assert stage.until_begun(tasks, 120)[-1][0] - began < 1 + 3 * takes


def speed(stage: Stage, count: int) -> float:
    """The seconds that the worker takes to run some tasks without limits, sending included."""
    first, plain = range(-50, 0), range(1000, 1000 + count)
    stage.send(pools.plain, first)  # the first ones of a worker take longer
    stage.until_begun(first)
    began = time.time()
    stage.send(pools.plain, plain)
    return stage.until_begun(plain, 120)[-1][0] - began


@pytest.mark.pools("solo")
@pytest.mark.usefixtures("worker")
def test_tasks_that_end_do_not_call_the_next(stage: Stage) -> None:
    """The thread that ends one starts the next: it must not do so within the end of the first."""
    tasks = range(150)
    stage.limiter["one"].pause(3600)
    stage.send(pools.one, tasks, 0.003)
    until(lambda: stage.client.hlen("{throttle}:messages:redis/0/pools") == len(tasks), "all wait")
    stage.limiter["one"].reset()
    stage.until_begun(tasks)
    assert max(int(depth) for depth in stage.client.smembers("pools-depths")) < 150


@pytest.mark.thorough
@pytest.mark.pools("prefork", "solo", "threads")
def test_a_broker_without_an_event_loop(
    redis_url: str, start_worker: StartWorker, pool: str, tmp_path: Path
) -> None:
    """There timers run in a thread, as those of gevent and eventlet do in greenlets."""
    options = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path)}
    options["control_folder"] = str(tmp_path / "control")
    env = {"THROTTLE_URL": redis_url, "BROKER_OPTIONS": json.dumps(options)}
    start_worker("tests.apps.pools", "filesystem://", pool=pool, concurrency=SIZES[pool], env=env)
    stage = Stage(redis_url, "filesystem://", options)
    tasks, slots = range(40), range(100, 110)
    stage.send(pools.paced, tasks)
    stage.send(pools.one, slots, 0.01)
    starts = stage.until_begun(tasks)
    assert Counter(number for _, number in starts) == Counter(tasks)
    assert late(starts, 50) < LATE
    stage.until_begun(slots)
    stage.close()


@pytest.mark.pools("threads", "gevent", "eventlet")
def test_tasks_that_run_count_after_a_lost_connection_to_the_broker(
    own_server: Server, redis_url: str, pool: str, start_worker: StartWorker
) -> None:
    """Celery before 5.7 forgets that it has reserved them."""
    env = {"THROTTLE_URL": redis_url}
    worker = start_worker("tests.apps.pools", own_server.url, pool=pool, concurrency=1, env=env)
    stage = Stage(redis_url, own_server.url)
    stage.send(pools.stay, range(1))
    stage.until_begun(range(1))
    with own_server.client() as broker:
        broker.client_kill_filter(_type="normal", skipme=True)
    until(lambda: "Connection to broker lost" in worker.log(), "a lost connection")
    until(lambda: worker.log().count("Connected to") == 2, "another connection")
    stage.send(pools.bursty, range(1, 2))
    until(lambda: worker.log().count(" received") == 2, "the next task")
    with Celery(broker=own_server.url, set_as_current=False) as sender:
        until(lambda: sender.control.ping([worker.hostname], limit=1), "the next round")
    assert stage.limiter["bursty"].status().totals.granted == 0
    stage.client.set("pools-end", 1)
    stage.until_begun(range(2))
    stage.close()
