"""Tasks that join their lines together: the same as one by one, with fewer commands."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from celery_throttle.limits.key import ItemLike, LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.waiting import Kept, LineTasks, Mode, ParkRequest, park_call
from tests.operations.test_claim_batches import FREE, TEXTS, calls_of
from tests.protocol import SECOND, Protocol, make_protocols

pytestmark = pytest.mark.thorough

QUEUES = ("q", "r")

#: A limit at which tasks of several lines wait.
EVERY = "9/s burst 4 max-waiting 40"


BOUNDED = ("100/s burst 3 max-waiting 30", "2/s using leaky-queue", "5/m burst 2 max-keys 3")


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


def draw_lines(lines: Protocol, dice: random.Random, kept: Kept) -> list[LineTasks]:
    """Return tasks of one line or of several, which may share limits."""
    keys = dice.choice(["a", "b", "c", "d", "aab", "abcd"])
    return [
        LineTasks(
            dice.choice(QUEUES),
            tasks_of(lines, dice, key, dice.randrange(1, 12)),
            temporary=dice.choice([False, False, True]),
            kept=kept,
            task_name=dice.choice(["task", "task", "another"]),
        )
        for key in keys
    ]


def tasks_of(lines: Protocol, dice: random.Random, key: str, count: int) -> list[ParkRequest]:
    """Return tasks of one line, of which some come twice."""
    limits: list[ItemLike] = [("api", key), *dice.choice([["all"], ["all"], []])]
    ids = [f"{lines.now} {dice.randrange(count)}" for _ in range(count)]
    return [
        ParkRequest(
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


def park_all(lines: Protocol, *together: Sequence[LineTasks]) -> list[Any]:
    """Park tasks by one call for each list of lines; return their replies."""
    return [
        reply
        for some in together
        for reply in lines.store.run(
            park_call(lines.keys, some, remember=60.0, lease=30.0, now=lines.now)
        )
    ]


def divide(drawn: Sequence[LineTasks]) -> list[list[LineTasks]]:
    """Return tasks of some lines one by one."""
    return [[replace(line, tasks=[task])] for line in drawn for task in line.tasks]


def stored(lines: Protocol) -> dict[bytes, Any]:
    """Return all that is stored, by key."""
    read = {
        b"string": lines.client.get,
        b"hash": lines.client.hgetall,
        b"set": lines.client.smembers,
        b"zset": lambda key: lines.client.zrange(key, 0, -1, withscores=True),
        b"stream": lines.client.xlen,
    }
    found = {key: read[lines.client.type(key)](key) for key in lines.client.keys("*")}
    for queue in QUEUES:
        key = lines.keys.queue(queue).lines.encode()
        if key in found:
            found[key] = json.loads(lines.client.eval(DESCRIPTORS, 1, key))
    return found


#: Unpacks the descriptors of lines: their names are packed in no certain order.
DESCRIPTORS = """
local found, lines = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #found, 2 do
  lines[found[i]] = { string.byte(found[i + 1]), cmsgpack.unpack(string.sub(found[i + 1], 2)) }
end
return cjson.encode(lines)
"""


def play(lines: Protocol, dice: random.Random, kept: Kept, *, together: bool) -> list[Any]:
    """Return the replies to all tasks, and what is stored after each step."""
    lines.client.flushdb()
    lines.limiter.register()
    seen: list[Any] = []
    for _ in range(12):
        lines.now += dice.choice([0, 1_000, 60_000, 2 * SECOND])
        drawn = draw_lines(lines, dice, kept)
        seen += [park_all(lines, *([drawn] if together else divide(drawn))), stored(lines)]
        rows = lines.claim("w", dice.randrange(4), queues=QUEUES)
        lines.back("w", "own", *(row.token for row in rows if dice.random() < 0.3))
        seen += [[(row.id, row.surplus) for row in rows], stored(lines)]
        lines.check()
    return seen


@pytest.mark.parametrize(
    ("text", "every"),
    [
        *((text, FREE) for text in (*TEXTS, *BOUNDED)),
        *((text, EVERY) for text in (TEXTS[0], TEXTS[-1], *BOUNDED)),
    ],
)
def test_tasks_that_join_together_join_as_one_by_one(
    make: Callable[..., Protocol], text: str, every: str
) -> None:
    """Those of one line, and those of several lines that share limits."""
    for kept in Kept:
        one, many = (
            play(make({"api": text, "all": every}), random.Random(kept), kept, together=together)
            for together in (False, True)
        )
        assert many == one


def test_each_further_task_costs_two_commands(make: Callable[..., Protocol]) -> None:
    """Whether it waits already, and how many lines wait at its limit."""
    lines = make({"api": "1/d"})
    lines.limiter["api"].acquire()
    limits = lines.require(["api"])
    tasks = [ParkRequest(str(n), b"message", limits, identity=str(n)) for n in range(24)]
    park_all(lines, [LineTasks("q", tasks[:4])])
    one = calls_of(lines, lambda: park_all(lines, [LineTasks("q", tasks[4:5])]))
    many = calls_of(lines, lambda: park_all(lines, [LineTasks("q", tasks[5:])]))
    assert many <= one + 18 * 2 + 4


def test_tasks_of_other_lines_cost_no_call_of_their_own(make: Callable[..., Protocol]) -> None:
    """What is not about one line is read and written once."""
    lines = make({"api": "1/d"})
    drawn = [
        LineTasks("q", [ParkRequest(key, b"message", lines.require([("api", key)]), identity=key)])
        for key in "abcdefgh"
    ]
    first = calls_of(lines, lambda: park_all(lines, drawn[:1]))
    second = calls_of(lines, lambda: park_all(lines, drawn[1:2]))
    others = calls_of(lines, lambda: park_all(lines, drawn[2:]))
    assert others <= first + 5 * (second - 4) + 1


@pytest.mark.parametrize("names", [["api"], ["api", "other"]])
def test_units_left_by_an_admitted_task_are_read_anew(
    make: Callable[..., Protocol], names: list[str]
) -> None:
    """Whether the task behind it is of its line or not."""
    lines = make({"api": "2 at once", "other": FREE})
    tasks = [
        ParkRequest(
            str(n),
            b"message",
            lines.require(["api"] if n % 2 else names),
            mode=Mode.MAY_RUN,
            holder=f"w {n}",
        )
        for n in range(6)
    ]
    drawn = [LineTasks("q", tasks[::2]), LineTasks("q", tasks[1::2])]
    outcomes = [reply[0] for reply in park_all(lines, drawn)]
    assert outcomes == [b"admitted"] * 2 + [b"parked"] * 4


def test_a_line_without_a_definition_does_not_stop_another(make: Callable[..., Protocol]) -> None:
    lines = make({"api": "1/d"})
    requirements = [Requirement((LimitRef("gone", None),), (SECOND,)), lines.require(["api"])]
    drawn = [
        LineTasks("q", [ParkRequest(str(n), b"message", requirement, mode=Mode.MAY_RUN)])
        for n, requirement in enumerate(requirements)
    ]
    assert [reply[0] for reply in park_all(lines, drawn)] == [b"unknown", b"admitted"]
