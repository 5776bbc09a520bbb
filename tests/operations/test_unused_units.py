"""Units of tasks that were not started are given back, where others come late.

Laws at stake: *never over* (nothing is given back twice, nor what was not taken, nor what a task
may have used) and *never idle* (the task whose claim went back starts as soon as a worker can start
it).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import GateRequest, Taken, gate_call, settle_takes
from celery_throttle.operations.waiting import ClaimStatus
from tests.protocol import SECOND, Claimed, Protocol, make_protocols

HOUR = 3600 * SECOND
HORIZON = 20_000

#: Limits that give a unit in more than a second.
SLOW = (
    "3/h burst 3",
    "3/h burst 3 using token-bucket",
    "3/h burst 3 using leaky-bucket",
    "3/h burst 3 using leaky-queue",
    "3/h using fixed-window",
    "3/h using fixed-window from first-request",
    "3/d using fixed-window in Europe/Berlin",
    "3/h using sliding-log",
    "3/h using sliding-window",
    "adaptive 1..3/h burst 3",
)
UNSTARTED = (ClaimStatus.HELD, ClaimStatus.DELIVERED)


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


def arrive(lines: Protocol, *limits: str, queue: str = "q", cost: float = 1) -> str:
    lines.tokens["task"] += 1
    task_id = f"task {lines.tokens['task']}"
    lines.park(task_id, limits, queue=queue, cost=cost, may_run=False)
    return task_id


def claim(lines: Protocol, *limits: str, cost: float = 1) -> Claimed:
    arrive(lines, *limits, cost=cost)
    (row,) = lines.claim(ahead=HORIZON)
    assert row.admitted
    return row


def remaining(lines: Protocol, name: str = "api") -> float:
    return lines.limiter[name].peek(0).remaining


def use_one(lines: Protocol) -> None:
    """Let a task start, whose unit stays in use."""
    lines.claim(room=0, settled=[claim(lines, "api").token])


@pytest.mark.parametrize("status", UNSTARTED)
@pytest.mark.parametrize("text", SLOW)
def test_a_task_that_was_not_started_can_be_claimed_again_at_once(
    make: Callable[..., Protocol], text: str, status: ClaimStatus
) -> None:
    lines = make({"api": text})
    if "leaky-queue" not in text:  # which lets one start an hour
        use_one(lines)
    row = claim(lines, "api")
    left = remaining(lines)
    lines.now += 300_000
    lines.back("w", "own", row.token, status=status)
    assert remaining(lines) > left
    (again,) = lines.claim(ahead=HORIZON)
    assert (again.id, again.admitted) == (row.id, True)
    lines.check()


@pytest.mark.parametrize("text", SLOW)
def test_what_a_task_may_have_used_is_not_given_back(
    make: Callable[..., Protocol], text: str
) -> None:
    lines = make({"api": text})
    row = claim(lines, "api")
    left = remaining(lines)
    lines.back("w", "own", row.token, status=ClaimStatus.STARTED)
    assert remaining(lines) == left
    lines.limiter["api"].reset()
    lines.claim("dead", lease=1)
    lines.now += 2
    left = remaining(lines)
    lines.back("dead", "dead")
    assert len(lines.waiting()) == 1
    assert remaining(lines) == left


def test_a_window_gives_nothing_back_for_a_task_of_the_window_before(
    make: Callable[..., Protocol],
) -> None:
    lines = make({"api": "3/h using fixed-window"})
    lines.now = HOUR - 10_000
    for _ in range(4):
        arrive(lines, "api")
    first, *_, booked = lines.claim(room=4, ahead=HORIZON)
    assert (first.starts, booked.starts) == (0, 10_000)
    lines.back("w", "own", first.token)
    lines.now = HOUR
    assert remaining(lines) == 2


@pytest.mark.parametrize("text", SLOW)
def test_no_unit_is_given_back_twice(make: Callable[..., Protocol], text: str) -> None:
    lines = make({"api": text})
    row = claim(lines, "api")
    before = remaining(lines)
    lines.back("w", "own", row.token)
    assert remaining(lines) == before + 1
    (again,) = lines.claim(ahead=HORIZON)
    assert remaining(lines) == before
    for _ in range(2):
        lines.back("w", "own", row.token)
        lines.claim(room=0, settled=[-row.token])
        lines.set_aside("w", row.token)
    assert remaining(lines) == before
    lines.claim(room=0, settled=[again.token])
    lines.back("w", "own", again.token)
    assert remaining(lines) == before


@pytest.mark.parametrize("text", SLOW)
def test_a_task_that_ends_without_a_start_uses_no_unit(
    make: Callable[..., Protocol], text: str
) -> None:
    """It has expired or was revoked after its claim, or its message is refused."""
    lines = make({"api": text})
    row = claim(lines, "api")
    left = remaining(lines)
    lines.claim(room=0, settled=[-row.token])
    assert remaining(lines) == left + 1
    lines.check()


@pytest.mark.parametrize("text", SLOW)
def test_a_task_that_goes_into_quarantine_uses_no_unit(
    make: Callable[..., Protocol], text: str
) -> None:
    lines = make({"api": text})
    row = claim(lines, "api")
    left = remaining(lines)
    lines.set_aside("w", row.token)
    assert remaining(lines) == left + 1
    lines.recall(row.id)
    (again,) = lines.claim(ahead=HORIZON)
    assert remaining(lines) == left
    lines.back("w", "own", again.token)
    assert remaining(lines) == left + 1


@pytest.mark.parametrize("text", [text for text in SLOW if "first-request" not in text])
def test_no_more_remains_than_if_the_task_had_not_been_claimed(
    make: Callable[..., Protocol], text: str
) -> None:
    """Whatever starts between a claim and its return, and however late that is."""
    lines, dice = make({"api": text, "same": text}), random.Random(2)  # no secret
    api, same = lines.limiter["api"], lines.limiter["same"]
    unused: list[int] = []
    returned = 0
    for _ in range(200):
        lines.now += dice.choice([1_000, SECOND, 700 * SECOND, 2000 * SECOND])
        move, cost = dice.choice(["claim", "start", "back"]), dice.choice([1, 1, 2, 0.5])
        if move == "start" and api.try_acquire(cost):
            assert same.try_acquire(cost)
        elif move == "claim":
            arrive(lines, "api", cost=cost)
            unused += [row.token for row in lines.claim(ahead=HORIZON)]
        elif move == "back" and unused:
            token = unused.pop(dice.randrange(len(unused)))
            returned += 1
            if dice.random() < 0.5:
                lines.back("w", "own", token, status=dice.choice(UNSTARTED))
            else:
                lines.claim(room=0, settled=[-token])
        assert remaining(lines) <= remaining(lines, "same")
    assert returned > 5


@pytest.mark.parametrize("text", SLOW)
def test_a_task_that_the_gate_has_admitted_can_give_its_unit_back(
    make: Callable[..., Protocol], text: str
) -> None:
    """By the call that parks tasks, and by that of the gate."""
    lines = make({"api": text})
    (take,) = lines.park("task", ["api"]).takes
    left = remaining(lines)
    give_back(lines, [take])
    assert remaining(lines) == left + 1
    requirement = Requirement((LimitRef("api", None),), (SECOND,))
    call = gate_call(lines.limiter.plans, [GateRequest(requirement)], HORIZON)
    ((*_, (marks,)),) = lines.store.run(call)
    assert remaining(lines) == left
    give_back(lines, [Taken("api", None, SECOND, marks)])
    assert remaining(lines) == left + 1


def give_back(lines: Protocol, takes: Sequence[Taken]) -> None:
    lines.limiter.run_plan(settle_takes(lines.limiter.plans, [(take, 0) for take in takes]))


def test_only_slow_limits_and_runs_that_settle_have_marks(make: Callable[..., Protocol]) -> None:
    limits = ("api", "slots")
    lines = make({"api": "1/s burst 3", "slots": "9 at once", "slow": "1/h"})
    assert not lines.park("task", limits).takes
    assert len(lines.park("another", limits, settles=True).takes) == 2
    assert len(lines.park("slow", [*limits, "slow"]).takes) == 3


@pytest.mark.parametrize("window", ["", " from first-request"])
def test_the_unit_of_a_window_that_has_ended_is_gone(
    make: Callable[..., Protocol], window: str
) -> None:
    lines = make({"api": f"3/h using fixed-window{window}"})
    row = claim(lines, "api")
    lines.now += HOUR
    use_one(lines)
    lines.back("w", "own", row.token)
    assert remaining(lines) == 2


def test_a_window_begins_with_the_first_task_that_starts(make: Callable[..., Protocol]) -> None:
    """Or the next window, too, would begin too early."""
    lines = make({"api": "1/h using fixed-window from first-request"})
    row = claim(lines, "api")
    lines.now += 600 * SECOND
    lines.back("w", "own", row.token)
    (again,) = lines.claim(ahead=HORIZON)
    assert again.admitted
    arrive(lines, "api")
    lines.now += HOUR - HORIZON - 1
    assert lines.claim(ahead=HORIZON) == []
    lines.now += 1
    (later,) = lines.claim(ahead=HORIZON)
    assert later.starts == HORIZON
    lines.back("w", "own", later.token)  # before its start
    (later,) = lines.claim(ahead=HORIZON)
    assert later.starts == HORIZON


def test_the_start_of_the_next_window_can_be_given_back(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "3/h using fixed-window"})
    lines.now += HOUR - lines.now % HOUR - 10_000
    assert lines.limiter["api"].acquire_up_to(3).granted == 3
    row = claim(lines, "api")
    assert row.starts == 10_000
    lines.back("w", "own", row.token)
    assert remaining(lines) == 0
    lines.now += 10_000
    assert remaining(lines) == 3


def test_a_limit_that_gives_units_in_a_second_keeps_them(make: Callable[..., Protocol]) -> None:
    """As at the gate: another one comes soon, and the claims of fast limits carry no marks."""
    lines = make({"api": "1/s burst 3", "slower": "10/11s burst 3"})
    for name, given_back in (("api", 0), ("slower", 1)):
        row = claim(lines, name)
        left = remaining(lines, name)
        lines.claim(room=0, settled=[-row.token])
        assert remaining(lines, name) == left + given_back


def test_units_of_another_definition_are_not_given_back(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "3/h burst 3"})
    row, other = claim(lines, "api"), claim(lines, "api")
    lines.now += SECOND
    lines.limiter["api"].define("6/h burst 6")
    left = remaining(lines)
    lines.back("w", "own", row.token)
    assert remaining(lines) == left
    lines.client.delete(lines.keys.limits)  # the server has lost the definition
    lines.back("w", "own", other.token)
    assert lines.waiting() == sorted([row.id, other.id])


def test_each_limit_of_a_task_gets_its_units_back(make: Callable[..., Protocol]) -> None:
    limits = {"api": "3/h burst 3", "fast": "100/s burst 9", "slots": "1 at once"}
    lines = make({**limits, "two": ["5/h burst 5", "9/d using sliding-log"]})
    row = claim(lines, *limits, "two", cost=2)
    assert [remaining(lines, name) for name in (*limits, "two")] == [1, 7, 0, 3]
    lines.back("w", "own", row.token)
    assert [remaining(lines, name) for name in (*limits, "two")] == [3, 9, 1, 5]


def test_a_slot_alone_is_released_as_before(make: Callable[..., Protocol]) -> None:
    lines = make({"slots": "1 at once"})
    row = claim(lines, "slots")
    lines.back("w", "own", row.token)
    (again,) = lines.claim()
    assert again.id == row.id


@pytest.mark.parametrize("how", ["back", "settled", "aside"])
def test_another_line_at_the_limit_starts_at_once(make: Callable[..., Protocol], how: str) -> None:
    """The task does not return to its own line, or not before the other one has been served."""
    lines = make({"api": "1/h"})
    row = claim(lines, "api")
    other = arrive(lines, "api", queue="other")
    assert lines.claim(queues=["other"], ahead=HORIZON) == []
    lines.now += SECOND
    if how == "back":
        lines.back("w", "own", row.token)
    elif how == "settled":
        lines.claim(room=0, settled=[-row.token])
    else:
        lines.set_aside("w", row.token)
    (started,) = lines.claim(queues=["other"], ahead=HORIZON)
    assert started.id == other
    assert lines.claim(ahead=HORIZON) == []


def test_units_given_back_are_counted_as_refunded(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "3/h burst 3"})
    for settled in (False, True):
        row = claim(lines, "api", cost=0.5)
        if settled:
            lines.claim(room=0, settled=[-row.token])
        else:
            lines.back("w", "own", row.token)
            lines.withdraw("w", row.id)
    assert int(lines.client.hget(lines.keys.totals("api"), "refunded")) == SECOND


def test_a_fleet_that_fails_to_start_tasks_never_exceeds_the_limit(
    make: Callable[..., Protocol],
) -> None:
    """Any mixture of starts and returns: of the tasks that started, no window has too many."""
    dice = random.Random(3)  # no secret
    for text in ("6/2h burst 2", "2/2h using sliding-log"):
        lines = make({"api": text})
        for _ in range(40):
            arrive(lines, "api")
        started: list[int] = []
        for _ in range(400):
            for row in lines.claim(room=2, ahead=HORIZON):
                at = lines.now + row.starts
                lines.now += dice.choice([0, 10_000, SECOND])
                if dice.random() < 0.4:
                    started.append(at)
                    lines.claim(room=0, settled=[row.token])
                else:
                    lines.back("w", "own", row.token)
            lines.now += dice.choice([1_000, SECOND, 300 * SECOND])
        assert len(started) >= 10
        period, most = (2 * HOUR, 2) if "log" in text else (2 * HOUR, 2 + 6)
        windows = (sum(at <= one < at + period for one in started) for at in started)
        assert max(windows) <= most
