"""A limit moves to another shard while workers run: 0 over, 0 lost, whenever the move is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Throttle
from celery_throttle.limiter.moves import LimitMove
from celery_throttle.operations.author import Author
from celery_throttle.operations.plan import StoreCall
from tests.servers.server import wait_until
from tests.worker.test_shards import LIMITS, Bench, bench

__all__ = ["bench"]  # a fixture

pytestmark = pytest.mark.workers

BURST, TASKS = 6, 30


@pytest.fixture
def throttle(bench: Bench) -> Iterator[Throttle]:
    throttle = bench.throttle()
    yield throttle
    bench.close_throttle(throttle)


def start(bench: Bench) -> None:
    bench.start(bench.erp_shard, {**LIMITS, "mail": f"{BURST}/d burst {BURST} outage closed"})


def settled(bench: Bench, limit: str, tasks: int) -> int:
    """Return how many tasks have started, once the others wait on the server of a limit."""
    wait_until(
        lambda: len(bench.records("mail")) + bench.waiting(limit) == tasks, "the rest in its line"
    )
    started = len(bench.records("mail"))
    # On a busy machine, a unit that was taken ahead may be lost.
    assert BURST - 2 <= started <= BURST
    return started


def all_run_once(bench: Bench, throttle: Throttle) -> None:
    throttle["mail"].define("1000/s burst 1000")
    bench.has_run("mail", TASKS)
    wait_until(lambda: bench.waiting("mail") + bench.waiting("erp") == 0, "empty lines")
    assert bench.records("mail") == sorted(str(number) for number in range(TASKS))


@pytest.mark.thorough
def test_waiting_tasks_go_where_the_limit_is(bench: Bench, throttle: Throttle) -> None:
    start(bench)
    bench.send("mail", range(TASKS))
    started = settled(bench, "mail", TASKS)
    (preview,) = throttle.preview_move("mail", "erp")
    assert (preview.source, preview.waiting, preview.lost) == ("home", TASKS - started, 0)
    throttle.move_to_shard("mail", "erp")
    assert settled(bench, "erp", TASKS) == started
    assert bench.waiting("mail") == 0
    all_run_once(bench, throttle)


def test_a_move_that_is_killed_at_any_step_goes_on(bench: Bench, throttle: Throttle) -> None:
    """Each move begins used up, so no more than one burst is granted in all of them."""
    start(bench)
    bench.send("mail", range(TASKS))
    started = settled(bench, "mail", TASKS)
    places, steps, has_ended = ("erp", "home"), 1, False
    while not has_ended:
        plan = LimitMove(throttle.parts, ["mail"], places[0]).run(Author.of())  # type: ignore[arg-type]  # it has parts
        has_ended = run_steps(plan, steps)
        bench.send("plain", range(1))
        bench.has_run("plain", steps)  # the worker has time to claim
        throttle.move_to_shard("mail", places[0])
        places, steps = places[::-1], steps + 1
    assert settled(bench, {"home": "mail", "erp": "erp"}[places[1]], TASKS) == started
    all_run_once(bench, throttle)


def run_steps(plan: Any, steps: int) -> bool:
    """Carry out some steps of a plan; return whether it has ended."""
    step = next(plan)
    for _ in range(steps):
        assert isinstance(step, StoreCall)
        try:
            step = plan.send(step.store.run(step.call))
        except StopIteration:
            return True
    return False


@pytest.mark.thorough
@pytest.mark.parametrize("cut_off", [0, 1])
def test_a_worker_with_an_old_epoch_follows(bench: Bench, throttle: Throttle, cut_off: int) -> None:
    """It stood still during the move: its definitions, its map and its claims are old."""
    workers = []
    for _ in range(2):
        start(bench)
        workers.append(bench.worker)
    bench.send("mail", range(TASKS // 2))
    started = settled(bench, "mail", TASKS // 2)
    os.kill(workers[cut_off].pid, signal.SIGSTOP)
    throttle.move_to_shard("mail", "erp")
    workers[not cut_off].terminate()
    workers[not cut_off].wait()
    os.kill(workers[cut_off].pid, signal.SIGCONT)
    bench.send("mail", range(TASKS // 2, TASKS))
    assert settled(bench, "erp", TASKS) == started
    all_run_once(bench, throttle)


@pytest.mark.thorough
def test_a_worker_that_does_not_have_the_shard_forbids_the_move(
    bench: Bench, throttle: Throttle
) -> None:
    bench.start({})
    bench.send("plain", range(1))
    bench.has_run("plain", 1)
    with pytest.raises(
        ConfigurationError, match=r"1 of 1 live workers, such as .* do not have shard 'erp'"
    ):
        throttle.move_to_shard("mail", "erp")


@pytest.mark.thorough
def test_limits_of_one_task_move_together(throttle: Throttle) -> None:
    @throttle.app.task(throttle=["mail", "tenant"], name="tests.both")
    def both() -> None: ...

    with pytest.raises(ConfigurationError, match=r"task 'tests\.both': limit 'mail' is needed"):
        throttle.move_to_shard("mail", "erp")
    throttle.move_to_shard(["mail", "tenant"], "erp")
    assert not throttle.try_acquire(["mail", "tenant", "erp"])
