"""Tasks are claimed out of their lines, and out of quarantine, by who takes them away for good."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.limits.key import ItemLike, parse_item
from celery_throttle.operations.lines import Claimant, WithdrawPlans
from celery_throttle.operations.plan import Plan
from tests.protocol import LINE_KINDS, SECOND, Make, Protocol

LIMITS = {"api": "1/h burst 100", "mail": "1/h", "keys": "1/h max-keys 3"}

MOVER = Claimant("drain", 30.0)


@pytest.fixture
def lines(make: Make) -> Protocol:
    """Lines of several limits, keys and ranks in two queues."""
    lines = make(LIMITS)
    for name in ("api", "mail", "keys"):
        lines.limiter[name].pause(3600)
    for number in range(10):
        lines.now += SECOND
        for queue in ("q", "other"):
            lines.park(f"api {queue} {9 - number % 3} {number}", ["api"], queue=queue)
        for tenant in range(3):
            limits: list[ItemLike] = ["api", ("mail", str(tenant))]
            lines.park(f"mail {tenant} {number}", limits, rank=number % 2)
    for key in range(3):
        lines.park(f"key {key}", [("keys", str(key))])
    lines.check()
    return lines


class Mover:
    """Withdraws the tasks that need a limit."""

    def __init__(self, lines: Protocol, limit: ItemLike | None = None, queue: str = "q") -> None:
        self.lines, self.queue = lines, queue
        ref = None if limit is None else parse_item(limit)
        self.plans = WithdrawPlans(lines.keys, ref, lines.now)
        self.parked_by = lines.now
        self.token = 1
        self.score: Any = "-inf"

    def run(self, plan: Plan[Any]) -> Any:
        return self.lines.limiter.run_plan(plan)

    def found(self) -> dict[str, int]:
        found: dict[str, int] = self.run(self.plans.lines(self.queue))
        return found

    def step(self, names: list[str], most: int = 3) -> tuple[list[str], list[str]]:
        """Withdraw some tasks; return their ids, and the lines that are left."""
        call = self.plans.lines_call(
            MOVER,
            self.queue,
            names,
            first_token=self.token,
            parked_by=self.parked_by,
            most=most,
            score=self.score,
        )
        done, self.score, *rows = self.lines.store.run(call)
        assert [token for token, *_ in rows] == [*range(self.token, self.token + len(rows))]
        assert all(message == b"message" for _, message, _ in rows)
        self.token += len(rows)
        return [task_id.decode() for *_, task_id in rows], names[done:]

    def withdraw(self, most: int = 3) -> list[str]:
        taken, left = [], list(self.found())
        while left:
            ids, left = self.step(left, most)
            assert len(ids) <= most
            taken += ids
            self.lines.check()
        return taken

    def withdraw_quarantined(self) -> list[str]:
        call = self.plans.quarantined_call(MOVER, self.queue, "0", first_token=self.token)
        cursor, count, *rows = self.lines.store.run(call)
        assert (cursor, count) == (b"0", len(rows))
        self.token += count
        return [task_id.decode() for *_, task_id in rows]

    def settle(self) -> None:
        self.lines.claim(MOVER.name, 0, settled=range(1, self.token), queues=[self.queue])


@pytest.mark.parametrize("most", [1, 3, 7, 500])
def test_all_tasks_of_a_queue(lines: Protocol, most: int) -> None:
    before = set(lines.waiting())
    taken = Mover(lines).withdraw(most)
    assert len(taken) == len(set(taken)) == 43
    assert set(lines.waiting()) == before - set(taken)
    assert all(" other " in task_id for task_id in lines.waiting())
    Mover(lines, queue="other").withdraw(most)
    for kind in (*LINE_KINDS, "messages"):
        assert lines.client.keys(f"{{throttle}}:{kind}:*") == []


def test_in_the_order_of_the_line(lines: Protocol) -> None:
    taken = Mover(lines, ("mail", "1")).withdraw()
    numbers = [*range(0, 10, 2), *range(1, 10, 2)]  # by rank, then age
    assert taken == [f"mail 1 {number}" for number in numbers]


def test_tasks_that_need_the_limit_wherever_they_wait(lines: Protocol) -> None:
    mails = {task_id for task_id in lines.waiting() if task_id.startswith("mail")}
    assert set(Mover(lines, "mail").withdraw()) == mails
    assert set(Mover(lines, "keys").withdraw()) == {"key 0", "key 1", "key 2"}
    assert len(Mover(lines, "api").withdraw()) == 10
    assert Mover(lines, "api").found() == {}


def test_a_line_is_listed_with_its_tasks(lines: Protocol) -> None:
    found = Mover(lines).found()
    assert sorted(found.values()) == [1, 1, 1, 10, 10, 10, 10]
    assert sum(Mover(lines, ("mail", "2")).found().values()) == 10


def test_tasks_that_joined_before_the_clock_was_set_back(lines: Protocol) -> None:
    """Those that join later are left all the same."""
    lines.now -= 60 * SECOND
    lines.park("new", ["api", ("mail", "1")])
    mover = Mover(lines)
    lines.now += 1
    for rank in (0, 1, 2):
        lines.park(f"late {rank}", ["api", ("mail", "1")], rank=rank)
    assert len(mover.withdraw(most=2)) == 44
    assert [task for task in lines.waiting() if " other " not in task] == [
        f"late {rank}" for rank in (0, 1, 2)
    ]


def test_tasks_that_join_later_are_left(lines: Protocol) -> None:
    mover = Mover(lines, ("mail", "1"))
    lines.now += 1
    for rank in (0, 1, 2):
        lines.park(f"late {rank}", ["api", ("mail", "1")], rank=rank)
    assert len(mover.withdraw(most=2)) == 10
    assert [task for task in lines.waiting() if task.startswith("late")] == [
        f"late {rank}" for rank in (0, 1, 2)
    ]


def test_it_ends_though_tasks_join_at_each_step(lines: Protocol) -> None:
    mover = Mover(lines, ("mail", "1"))
    taken: list[str] = []
    left, steps = list(mover.found()), 0
    while left:
        steps += 1
        lines.now += 1
        for number in range(5):
            lines.park(f"late {steps} {number}", ["api", ("mail", "1")], rank=number % 2)
        ids, left = mover.step(left, most=2)
        taken += ids
    assert len(taken) == 10
    assert steps < 20


def test_workers_claim_meanwhile(lines: Protocol) -> None:
    lines.limiter["api"].resume()
    mover = Mover(lines, queue="other")
    taken: list[str] = []
    left = list(mover.found())
    while left:
        taken += [claim.id for claim in lines.claim(room=1, queues=["other"])]
        lines.check()
        ids, left = mover.step(left, most=1)
        taken += ids
    assert sorted(taken) == sorted({task_id for task_id in taken if " other " in task_id})
    assert len(taken) == 10
    assert not any(" other " in task_id for task_id in lines.waiting())


def test_a_dead_claimant_is_like_a_dead_worker(lines: Protocol) -> None:
    before = lines.waiting()
    Mover(lines).withdraw()
    lines.now += 30 * SECOND
    lines.claim(room=0)
    assert lines.dead == b"drain"
    while lines.back("drain", "dead"):
        lines.check()
    lines.check()
    assert lines.waiting() == before
    assert Mover(lines, ("mail", "1")).withdraw()[:2] == ["mail 1 0", "mail 1 2"]


def test_without_tasks_there_is_no_lease(lines: Protocol) -> None:
    mover = Mover(lines)
    mover.withdraw()
    mover.settle()
    assert not lines.client.exists(lines.keys.workers, lines.keys.claims("drain"))
    mover.step(["{throttle}:line:of-nobody"])
    assert not lines.client.exists(lines.keys.workers)


def test_tasks_in_quarantine(lines: Protocol) -> None:
    lines.limiter["api"].resume()
    claims = lines.claim(room=50, queues=["q"])
    assert len(claims) > 2
    for claim in claims:
        lines.set_aside("w", claim.token)
    mover = Mover(lines)
    assert mover.run(mover.plans.count_quarantined()) == {"q": len(claims)}
    assert Mover(lines, "keys").withdraw_quarantined() == []
    assert Mover(lines, queue="other").withdraw_quarantined() == []
    assert set(mover.withdraw_quarantined()) == {claim.id for claim in claims}
    assert not lines.client.exists(lines.keys.quarantine)
    assert mover.run(mover.plans.count_claims()) == len(claims)
    assert mover.run(Mover(lines, "keys").plans.count_claims()) == 0
    before = lines.waiting()
    lines.back("drain", "own", *range(1, mover.token))
    lines.check()
    assert lines.waiting() == sorted([*before, *(claim.id for claim in claims)])
