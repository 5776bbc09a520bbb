"""Tasks that join their line together: the same as one by one, with fewer commands."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_throttle.limits.key import ItemLike
from celery_throttle.operations.waiting import Kept, Mode, WaitingTask, park_call
from tests.operations.test_claim_batches import FREE, TEXTS, calls_of
from tests.protocol import SECOND, Protocol, make_protocols

BOUNDED = ("100/s burst 3 max-waiting 30", "2/s using leaky-queue", "5/m burst 2 max-keys 3")


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


def tasks_of(lines: Protocol, dice: random.Random, count: int) -> list[WaitingTask]:
    """Return tasks of one line, of which some come twice."""
    limits: list[ItemLike] = [("api", dice.choice("abcd")), "all"]
    ids = [f"{lines.now} {dice.randrange(count)}" for _ in range(count)]
    return [
        WaitingTask(
            task_id,
            b"message",
            lines.require(limits, dice.choice([1, 1, 2])),
            rank=dice.choice([3, 3, 3, 1, 5]),
            expires=dice.choice([0, lines.now + SECOND]),
            max_wait=dice.choice([None, None, 0.0, 2.0]),
            mode=dice.choice([Mode.PARK, Mode.PARK, Mode.MAY_RUN, Mode.JUST_SENT]),
            settles=dice.choice([False, False, True]),
            identity=f"{task_id} 0 0",
            redelivered=dice.choice([False, True]),
            holder=f"worker {task_id}",
        )
        for task_id in ids
    ]


def park_all(
    lines: Protocol, tasks: Sequence[WaitingTask], size: int, kept: Kept = Kept.ALL
) -> list[Any]:
    """Park tasks, so many in each call; return their replies."""
    replies: list[Any] = []
    while len(replies) < len(tasks):
        some = tasks[len(replies) : len(replies) + size]
        call = park_call(
            lines.keys,
            "q",
            some,
            remember=60.0,
            lease=30.0,
            kept=kept,
            task_name="task",
            now=lines.now,
        )
        replies += lines.store.run(call)
    return replies


def stored(lines: Protocol) -> dict[bytes, Any]:
    """Return all that is stored, by key."""
    read = {
        b"string": lines.client.get,
        b"hash": lines.client.hgetall,
        b"set": lines.client.smembers,
        b"zset": lambda key: lines.client.zrange(key, 0, -1, withscores=True),
        b"stream": lines.client.xlen,
    }
    keys = lines.client.keys("*")
    return {key: read[lines.client.type(key)](key) for key in keys}


def play(lines: Protocol, dice: random.Random, size: int, kept: Kept) -> list[Any]:
    """Return the replies to all tasks, and what is stored after each step."""
    lines.client.flushdb()
    lines.limiter.register()
    seen: list[Any] = []
    for _ in range(12):
        lines.now += dice.choice([0, 1_000, 60_000, 2 * SECOND])
        seen += [park_all(lines, tasks_of(lines, dice, dice.randrange(1, 12)), size, kept)]
        rows = lines.claim("w", dice.randrange(4))
        lines.back("w", "own", *(row.token for row in rows if dice.random() < 0.3))
        seen += [[(row.id, row.surplus) for row in rows], stored(lines)]
        lines.check()
    return seen


@pytest.mark.parametrize("text", [*TEXTS, *BOUNDED])
def test_tasks_that_join_together_join_as_one_by_one(
    make: Callable[..., Protocol], text: str
) -> None:
    for kept in Kept:
        one, many = (
            play(make({"api": text, "all": FREE}), random.Random(kept), size, kept)
            for size in (1, 12)
        )
        assert many == one


def test_each_further_task_costs_two_commands(make: Callable[..., Protocol]) -> None:
    """Whether it waits already, and how many lines wait at its limit."""
    lines = make({"api": "1/d"})
    lines.limiter["api"].acquire()
    limits = lines.require(["api"])
    tasks = [WaitingTask(str(n), b"message", limits, identity=str(n)) for n in range(24)]
    park_all(lines, tasks[:4], 1)
    one = calls_of(lines, lambda: park_all(lines, tasks[4:5], 1))
    many = calls_of(lines, lambda: park_all(lines, tasks[5:], 19))
    assert many <= one + 18 * 2 + 4


def test_a_task_that_is_admitted_ends_the_call(make: Callable[..., Protocol]) -> None:
    """So what is left for those behind it is read anew."""
    lines = make({"api": "2 at once"})
    limits = lines.require(["api"])
    tasks = [
        WaitingTask(str(n), b"message", limits, mode=Mode.MAY_RUN, holder=f"w {n}")
        for n in range(4)
    ]
    call = park_call(lines.keys, "q", tasks, lease=30.0, now=lines.now)
    assert [reply[0] for reply in lines.store.run(call)] == [b"admitted"]
    assert [reply[0] for reply in park_all(lines, tasks[1:], 3)] == [
        b"admitted",
        b"parked",
        b"parked",
    ]
