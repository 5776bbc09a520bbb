"""Claims of several tasks: the same as single claims, with fewer commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_throttle.limits.key import ItemLike
from tests.protocol import SECOND, Protocol, make_protocols

#: Limits of one name at which all tasks of these tests wait.
TEXTS = (
    "40/s burst 5",
    "1000/s",
    "30/s burst 4 using token-bucket",
    "30/s burst 4 using leaky-bucket",
    "50/s burst 40 using leaky-queue",
    "9/s using fixed-window",
    "9/s using fixed-window from first-request",
    "9/s using sliding-log",
    "9/s using sliding-window",
    "12/s using sliding-window parts 4",
    "adaptive 5..20/s burst 6",
    "7 at once",
)

#: Tasks taken at each moment at most.
ROOM = 8

FREE = "1000000/s burst 1000000"


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


def play(lines: Protocol, dice: random.Random, room: int) -> list[Any]:
    """Return the tasks of each claim, and the data stored afterwards."""
    lines.limiter["tenant", "b"].define(weight=3)
    for number in range(90):
        limits: list[ItemLike] = ["api"]
        if number % 5 > 1:
            limits.append(("tenant", dice.choice("abc")))
        lines.park(
            str(number),
            limits,
            rank=dice.choice([3, 3, 3, 5]),
            cost=dice.choice([1, 1, 2, 6]),
            expires=dice.choice([0, 0, 0, 0, lines.now + SECOND]),
            may_run=False,
        )
    seen: list[Any] = []
    for _ in range(40):
        lines.now += dice.choice([1_000, 20_000, 60_000, 200_000])
        taken: list[Any] = []
        while len(taken) < ROOM:
            rows = lines.claim("w", min(room, ROOM - len(taken)), ahead=20_000)
            taken += [(row.id, row.starts, row.admitted, row.waited, row.slots) for row in rows]
            if not rows:
                break
        seen.append(taken)
        seen.append([lines.client.get("{throttle}:state:api"), lines.client.get(BACKLOG)])
        lines.check()
    return seen


BACKLOG = "{throttle}:backlog:api"


@pytest.mark.thorough
@pytest.mark.parametrize("text", TEXTS)
def test_a_claim_of_several_takes_what_claims_of_one_take(
    make: Callable[..., Protocol], text: str
) -> None:
    for chance in range(2):
        found = []
        for room in (1, ROOM):
            lines = make({"api": text, "tenant": FREE})
            lines.client.flushdb()
            lines.limiter.register()
            found.append(play(lines, random.Random(chance), room))
        assert found[0] == found[1]


def calls_of(lines: Protocol, use: Callable[[], Any]) -> int:
    lines.client.config_resetstat()
    use()
    stats = lines.client.info("commandstats")
    return sum(int(about["calls"]) for about in stats.values())


@pytest.mark.parametrize("lines_of", [1, 3])
def test_each_further_task_of_a_line_costs_one_command(
    make: Callable[..., Protocol], lines_of: int
) -> None:
    """Its row is read. The lines wait at limits of their own: at one they would take turns."""
    lines = make({"tenant": FREE})
    for number in range(60):
        for tenant in range(lines_of):
            lines.park(f"{tenant} {number}", [("tenant", str(tenant))], may_run=False)
    lines.claim("w", 1)
    one = calls_of(lines, lambda: lines.claim("w", 1))
    many = calls_of(lines, lambda: lines.claim("w", 50))
    assert many <= one + 49 + 2


def test_slots_are_taken_for_free_processes_only(make: Callable[..., Protocol]) -> None:
    lines = make({"slots": "9 at once", "api": FREE})
    for number in range(5):
        lines.park(f"slow {number}", ["slots"], may_run=False)
        lines.park(f"fast {number}", ["api"], may_run=False)
    taken = lines.claim("w", 8, free=2)
    assert sum(row.id.startswith("slow") for row in taken) <= 2
    assert len(lines.waiting()) == 10 - len(taken)
    assert lines.ask == 0
    while lines.waiting():
        taken = lines.claim("w", 8, free=2)
        assert taken
        assert sum(row.id.startswith("slow") for row in taken) <= 2
    lines.check()


def test_what_the_version_before_claimed_goes_back(make: Callable[..., Protocol]) -> None:
    """A claim is kept as it was, though it is put together from what is packed already."""
    lines = make({"api": FREE})
    lines.park("a", ["api"], may_run=False)
    [row] = lines.claim("w")
    claims = lines.keys.claims("w")
    repacked = lines.client.eval(
        "local claim = redis.call('HGET', KEYS[1], ARGV[1]) "
        "local parts = cmsgpack.unpack(claim) "
        "redis.call('HSET', KEYS[1], ARGV[1], cmsgpack.pack(parts)) return #parts",
        1,
        claims,
        row.token,
    )
    assert repacked == 5
    lines.back("w", "own", row.token)
    assert lines.waiting() == ["a"]
    lines.check()


def test_a_start_is_booked_far_ahead_for_free_processes_only(make: Callable[..., Protocol]) -> None:
    """Nor is a list looked at again and again that has room only later."""
    lines = make({"api": "400/s", "fast": "2000/s"})
    for number in range(9):
        lines.park(f"{number}", ["api"], may_run=False)
        lines.park(f"fast {number}", ["fast"], may_run=False)
    taken: list[Any] = []
    few = calls_of(lines, lambda: taken.extend(lines.claim("w", 20, ahead=20_000, free=20)))
    assert len(taken) == 18
    lines.client.flushdb()
    lines.limiter.register()
    for number in range(9):
        lines.park(f"{number}", ["api"], may_run=False)
    rows: list[Any] = []
    calls = calls_of(
        lines, lambda: rows.extend(lines.claim("w", 9, ahead=20_000, free=2, moment=1_000))
    )
    assert [row.starts for row in rows] == [0, 2_500]
    assert calls < few
    lines.client.flushdb()
    lines.limiter.register()
    for number in range(9):
        lines.park(f"fast {number}", ["fast"], may_run=False)
    rows = lines.claim("w", 9, ahead=20_000, free=2, moment=1_000)
    assert [row.starts for row in rows] == [0, 500, 1_000]


def test_units_that_come_again_late_are_taken_for_free_processes_only(
    make: Callable[..., Protocol],
) -> None:
    """They would be lost if the task had to go back."""
    lines = make({"hourly": "100/h burst 100", "fast": "100/s burst 100"})
    for number in range(9):
        lines.park(f"{number}", ["hourly"], may_run=False)
    assert len(lines.claim("w", 8, ahead=20_000, free=2)) == 2
    assert lines.ask == 0
    for number in range(9):
        lines.park(f"fast {number}", ["fast"], may_run=False)
        lines.park(f"both {number}", ["fast", "hourly"], may_run=False)
    while len(lines.waiting()) > 9:
        assert lines.claim("w", 8, ahead=20_000, free=1)
    lines.check()


def test_lines_of_slow_limits_are_not_read_for_processes_that_are_not_free(
    make: Callable[..., Protocol],
) -> None:
    """No unit of theirs would be taken."""
    lines = make({"tenant": "2/s"})
    for number in range(5):
        lines.park(str(number), [("tenant", str(number))], may_run=False)
    lines.claim("w", moment=20_000)
    one = calls_of(lines, lambda: lines.claim("w", 1, moment=20_000))
    more = calls_of(lines, lambda: lines.claim("w", 2, free=1, moment=20_000))
    assert len(lines.waiting()) == 2
    assert more <= one + 1
    assert lines.ask == 0
    lines.check()


def test_a_line_of_which_a_claim_takes_less_than_it_wants_is_due_when_its_limit_has_room(
    make: Callable[..., Protocol],
) -> None:
    """Not before: the next claim would look at it in vain."""
    lines = make({"tenant": "2/s"})
    for number in range(2):
        lines.park(str(number), [("tenant", "a")], may_run=False)
    assert len(lines.claim("w", 2, free=1, ahead=20_000, moment=20_000)) == 1
    [(_, due)] = lines.client.zrange(lines.keys.queue("q").due, 0, -1, withscores=True)
    assert due == lines.now + SECOND // 2
    lines.check()


def test_a_fast_limit_behind_a_slow_one_is_claimed_for_the_next_free_process(
    make: Callable[..., Protocol],
) -> None:
    lines = make({"tenant": "2/s", "fast": FREE})
    lines.park("slow", [("tenant", "a")], may_run=False)
    lines.now += 1
    lines.park("fast", ["fast"], may_run=False)
    assert [row.id for row in lines.claim("w", 2, moment=20_000, free=1)] == ["slow"]
    assert lines.ask == 0
    assert [row.id for row in lines.claim("w", 2, moment=20_000, free=1)] == ["fast"]
    lines.check()
