"""Every start of a task with a limit passes the gate, once, whatever strategy the task has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.apps import strategies
from tests.programs import run_python
from tests.servers.server import wait_until
from tests.worker.conftest import SIZES
from tests.workers import StartWorker, Worker

pytestmark = pytest.mark.workers

SECONDS = 60  # what takes longer never comes


class Site:
    """One worker, and what its tasks noted."""

    def __init__(self, url: str, worker: Worker) -> None:
        self.url, self.worker = url, worker
        self.client: Any = redis.Redis.from_url(url)
        strategies.app.conf.update(broker_url=url)

    def send(self, task: Any, count: int, **options: Any) -> list[str]:
        with Connection(self.url) as connection:
            return [
                str(task.apply_async((number,), connection=connection, **options))
                for number in range(count)
            ]

    def notes(self, what: str) -> list[tuple[str, float]]:
        """The first word of each note, and its time, the earliest first."""
        rows = [row.decode().split() for row in self.client.lrange(f"strategies-{what}", 0, -1)]
        return sorted(((row[0], float(row[-1])) for row in rows), key=lambda row: row[1])

    def until_noted(self, what: str, count: int) -> list[tuple[str, float]]:
        """Wait until so many are noted, and no task waits or is on its way."""
        wait_until(lambda: len(self.notes(what)) >= count, f"{count} {what}", SECONDS)
        wait_until(self.is_idle, "no task waits", SECONDS)
        return self.notes(what)

    def is_idle(self) -> bool:
        waiting = strategies.throttle.count_waiting()
        return waiting.waiting == waiting.claimed == 0

    def close(self) -> None:
        names = ("batched", "slow", "early", "real", "seen", "passed", "ran", "element")
        self.client.delete(*(f"strategies-{name}" for name in names))
        self.client.close()


@pytest.fixture
def site(redis_url: str, start_worker: StartWorker, pool: str) -> Iterator[Site]:
    env, size = {"THROTTLE_URL": redis_url}, SIZES[pool]
    worker = start_worker("tests.apps.strategies", redis_url, pool=pool, concurrency=size, env=env)
    site = Site(redis_url, worker)
    yield site
    site.close()


REAL = pytest.mark.skipif(not hasattr(strategies, "real"), reason="celery-batches is not installed")


@pytest.mark.pools("prefork", "threads")
@pytest.mark.parametrize("name", ["batched", pytest.param("real", marks=REAL)])
def test_batches_take_units_for_each_of_their_tasks(site: Site, name: str) -> None:
    """Of 60 tasks, 10 may start at once, and 20 a second. Those with an ETA take theirs then."""
    task, began = getattr(strategies, name), time.time()
    ids = site.send(task, 50) + site.send(task, 10, countdown=1)
    ran = site.until_noted(name, 60)
    assert sorted(one for one, _ in ran) == sorted(ids)
    assert ran[-1][1] - began > 50 / 20


@pytest.mark.thorough
@pytest.mark.pools("prefork")
def test_a_batch_holds_slots_until_its_messages_are_acknowledged(site: Site) -> None:
    """So no batch has more tasks than there are slots, and no two are there at the same time."""
    site.send(strategies.slow_batched, 9)
    wait_until(lambda: sum(int(one) for one, _ in site.notes("slow")) == 9, "all ran", SECONDS)
    wait_until(site.is_idle, "all claims are settled", SECONDS)
    assert max(int(one) for one, _ in site.notes("slow")) <= 3


@pytest.mark.thorough
@pytest.mark.pools("prefork")
def test_a_task_whose_starts_do_not_pass_the_gate_is_reported(site: Site) -> None:
    """Once in the log, and in ``ls``. A task whose starts do is not, whatever its strategy is."""
    site.send(strategies.counted, 2)
    site.until_noted("ran", 2)
    for _ in range(2):
        site.send(strategies.batched, 2)
        site.send(strategies.early_batched, 2)
        wait_until(lambda: not site.client.llen("strategies"), "the worker has them", SECONDS)
        wait_until(site.is_idle, "all are acknowledged", SECONDS)
    wait_until(lambda: len(strategies.throttle.status().ungated) == 2, "both are known", SECONDS)
    shown = run_python(
        *("-m", "celery", "-A", "tests.apps.strategies", "throttle", "ls"),
        env={"CELERY_BROKER_URL": site.url, "THROTTLE_URL": site.url},
    )
    log, text = site.worker.log(), "its strategy starts it, later than its limits admit it"
    remedy = "; its slots are released before it ends: set acks_late=True"
    for name, more in (("batched", ""), ("early_batched", remedy)):
        line = f" tests.apps.strategies.{name}: {text}{more}\n"
        assert shown.count(line) == log.count(line) == 1
    assert shown.count(text) == log.count(text) == 2


@pytest.mark.thorough
@pytest.mark.pools("prefork", "solo", "gevent")
def test_a_strategy_is_called_once_for_each_start(site: Site) -> None:
    """It sees no error of ours. The limit, which all share, lets 5 start, and then 20 a second."""
    began = time.time()
    own = site.send(strategies.counted, 20) + site.send(strategies.counted, 5, countdown=1)
    own += site.send(strategies.unlimited, 5)
    every = own + site.send(strategies.late, 10)
    ran = site.until_noted("ran", len(every))
    assert sorted(one for one, _ in ran) == sorted(every)
    assert ran[-1][1] - began > 30 / 20
    assert sorted(one for one, _ in site.notes("seen")) == sorted(own)
    assert sorted(one for one, _ in site.notes("passed")) == sorted(own)
    log = site.worker.log()
    assert {log.count(f"[{one}] received") for one in every} == {1}


@pytest.mark.pools("prefork")
def test_chunks_map_and_starmap_take_units_for_each_element(site: Site) -> None:
    """Of each key, 10 may start at once, and 20 a second. More than 10 never can."""
    element, began = strategies.element, time.time()
    element.chunks(zip(range(30), strict=True), 10).apply_async()
    element.map(range(30, 40)).apply_async()
    element.starmap([(number, str(number % 2)) for number in range(40, 60)]).apply_async()
    ran = site.until_noted("element", 60)
    assert sorted(int(one) for one, _ in ran) == [*range(60)]
    assert ran[-1][1] - began > 30 / 20
    element.map(range(100, 111)).apply_async()
    error = "cost 11 can never pass limit 'elements': its burst is 10"
    wait_until(lambda: error in site.worker.log(), "it fails", SECONDS)
    element.starmap([(number, str(number)) for number in range(101)]).apply_async()
    error = "101 limits and keys are named at once; allowed: at most 100"
    wait_until(lambda: error in site.worker.log(), "it fails as well", SECONDS)
    assert len(site.notes("element")) == 60
