"""Units that are taken for a task in a line can be settled, as those of a reservation.

Law at stake: *never over*. The marks say until when a take is in use; with wrong ones, a refund
would give back units of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from celery_throttle.operations.acquire import settle_takes
from tests.protocol import SECOND, Claimed, Protocol, make_protocols

#: Limits of the same definition: tasks in lines take from the first, reservations from the second.
TEXTS = (
    "40/s burst 50",
    "30/s burst 40 using token-bucket",
    "30/s burst 40 using leaky-bucket",
    "40/s using fixed-window",
    "40/s using fixed-window from first-request",
    "40/s using sliding-log",
    "40/s using sliding-window",
    "adaptive 5..20/s burst 60",
)


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


def claim(lines: Protocol, cost: float, *limits: str, settles: bool = True) -> Claimed:
    lines.tokens["task"] += 1
    task_id = f"task {lines.tokens['task']}"
    lines.park(task_id, limits, cost=cost, may_run=False, settles=settles)
    (claimed,) = lines.claim()
    assert claimed.admitted
    return claimed


@pytest.mark.parametrize("text", TEXTS)
def test_a_claim_settles_as_a_reservation(make: Callable[..., Protocol], text: str) -> None:
    dice = random.Random(1)  # no secret
    for _ in range(20):
        lines = make({"api": text, "same": text})
        pending = []
        for _ in range(12):
            lines.now += dice.choice([1_000, 20_000, 200_000, 700_000])
            cost = dice.choice([1, 2, 6])
            same = lines.limiter["same"]
            assert lines.limiter["api"].peek(0).remaining == same.peek(0).remaining
            if same.peek(cost):
                reserved = same.reserve(cost)
                (take,) = claim(lines, cost, "api").takes
                assert take[:3] == ("api", None, cost * SECOND)
                pending.append((take, reserved))
            if pending and dice.random() < 0.6:
                take, reserved = pending.pop(dice.randrange(len(pending)))
                actual = dice.choice([0, 1, 3, 7])
                reserved.settle(actual)
                plan = settle_takes(lines.limiter.plans, [(take, actual * SECOND)])
                lines.limiter.run_plan(plan)


def test_only_a_task_that_settles_has_marks(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "10/s burst 9", "pool": "2 at once"})
    assert not claim(lines, 1, "api", "pool", settles=False).takes
    claimed = claim(lines, 2, "api", "pool")
    assert [(take.name, take.cost) for take in claimed.takes] == [
        ("api", 2 * SECOND),
        ("pool", 2 * SECOND),
    ]
    assert len(claimed.slots) == 2


def test_a_task_that_was_requeued_still_settles(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "10/s burst 9"})
    claimed = claim(lines, 2, "api")
    lines.back("w", "own", claimed.token)
    (again,) = lines.claim()
    assert again.takes[0].cost == 2 * SECOND
