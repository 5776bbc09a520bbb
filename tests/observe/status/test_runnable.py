"""The number of runnable tasks of each queue, by which an autoscaler scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from celery_throttle.observe.metrics.figures import Figures, read_figures
from tests.ends import MakeEnd
from tests.protocol import SECOND, Protocol

LIMITS = {
    "api": "10/s burst 10",
    "mail": "1/s burst 100",
    "slots": "3 at once",
    "leaky": "1/s burst 50 using leaky-queue",
    "minute": "5/m using fixed-window",
}


@pytest.fixture
def lines(redis_url: str) -> Any:
    found = Protocol(redis_url, LIMITS)
    yield found
    found.close()


def figures(lines: Protocol) -> Figures:
    return lines.limiter.run_plan(read_figures(lines.limiter.observer, 1000))


def runnable(lines: Protocol) -> Mapping[str, int]:
    return figures(lines).runnable


def use_up(lines: Protocol, *names: str) -> None:
    for name in names:
        while lines.limiter[name].acquire_up_to(100).granted:
            pass


def test_none_while_the_limit_is_used_up(lines: Protocol) -> None:
    use_up(lines, "api")
    for number in range(200):
        lines.park(f"t{number}", ["api"])
    assert runnable(lines) == {"q": 0}


def test_as_many_as_there_are_units_without_any_worker(lines: Protocol) -> None:
    use_up(lines, "api")
    for number in range(200):
        lines.park(f"t{number}", ["api"])
    for seconds, tasks in ((0.1, 1), (0.25, 2), (0.9, 9), (3.0, 10)):
        lines.now = 1_000 * SECOND + round(seconds * SECOND)
        assert runnable(lines) == {"q": tasks}
    assert figures(lines).workers == 0


def test_all_tasks_if_there_are_units_for_them(lines: Protocol) -> None:
    for number in range(4):
        lines.park(f"t{number}", ["mail"], may_run=False)
    assert runnable(lines) == {"q": 4}


def test_none_while_the_limit_or_a_key_is_paused(lines: Protocol) -> None:
    for key in "ab":
        lines.park(f"t-{key}", [("mail", key)], may_run=False)
    lines.limiter["mail", "a"].pause(60)
    assert runnable(lines) == {"q": 1}
    lines.limiter["mail"].pause(None)
    lines.now += 10 * SECOND
    assert runnable(lines) == {"q": 0}
    lines.limiter["mail"].resume()
    assert runnable(lines) == {"q": 1}
    lines.now += 60 * SECOND
    assert runnable(lines) == {"q": 2}


def test_units_that_lines_share_are_counted_once(lines: Protocol) -> None:
    for number in range(40):
        lines.park(f"t{number}", ["api", ("mail", number)], may_run=False)
    assert runnable(lines) == {"q": 10}
    use_up(lines, "api")
    assert runnable(lines) == {"q": 0}


def test_each_queue_can_use_all_units(lines: Protocol) -> None:
    for queue in ("p", "q"):
        for number in range(20):
            lines.park(f"{queue}{number}", ["api"], queue=queue, may_run=False)
    assert runnable(lines) == {"p": 10, "q": 10}
    lines.now += SECOND
    assert lines.limiter["api"].status().runnable == 10


@pytest.mark.parametrize(
    ("limits", "cost", "tasks"),
    [
        (["api"], 3, 3),
        (["api"], 0.25, 20),
        (["mail"], 12.5, 8),
        (["slots"], 3, 3),
        (["api", "slots"], {"api": 4}, 2),
    ],
)
def test_tasks_that_cost_other_than_a_unit(
    lines: Protocol, limits: list[str], cost: Any, tasks: int
) -> None:
    for number in range(20):
        lines.park(f"t{number}", limits, cost=cost, may_run=False)
    assert runnable(lines) == {"q": tasks}


@pytest.mark.parametrize(("name", "tasks"), [("slots", 3), ("leaky", 1), ("minute", 5)])
def test_other_limits(lines: Protocol, name: str, tasks: int) -> None:
    for number in range(20):
        lines.park(f"t{number}", [name], may_run=False)
    assert runnable(lines) == {"q": tasks}
    lines.claim(room=tasks)
    lines.now += 1
    assert runnable(lines) == {"q": 0}


def test_tasks_that_workers_without_a_free_process_leave(lines: Protocol) -> None:
    """A claim that takes one of many lets the list be due anew: the rest counts at once."""
    for number in range(20):
        lines.park(f"t{number}", ["mail"], may_run=False)
    lines.claim(room=1)
    assert runnable(lines) == {"q": 19}
    assert lines.limiter["mail"].status().runnable == 0
    lines.now += SECOND
    assert lines.limiter["mail"].status().runnable == 19


def test_a_queue_whose_tasks_are_all_started_is_left_out(lines: Protocol) -> None:
    lines.park("t", ["mail"], may_run=False)
    lines.claim()
    assert runnable(lines) == {}


def test_of_many_lines_some_are_counted(lines: Protocol) -> None:
    for number in range(1_200):
        lines.park(f"t{number}", [("mail", number)], may_run=False)
    assert 1_000 <= runnable(lines)["q"] < 1_200


def test_sync_and_asyncio_read_the_same(lines: Protocol, end_of: MakeEnd) -> None:
    lines.limiter["api"].try_acquire(10)
    for number in range(3):
        lines.park(f"t{number}", ["api", ("mail", "k")])
    end = end_of(lines.limiter)
    plan = read_figures(lines.limiter.observer, 1000)
    assert end.run_plan(plan) == figures(lines)
