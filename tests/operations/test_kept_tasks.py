"""One waiting task of a line: the newest or the first stays, the others leave without units."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from celery_throttle.limits.key import ItemLike
from celery_throttle.operations.waiting import ClaimStatus, Kept
from celery_throttle.store.keys import Keys
from tests.protocol import SECOND, Claimed, Protocol, make_protocols

ONE_KEY: Sequence[ItemLike] = [("api", "a")]


@pytest.fixture
def make(redis_url: str) -> Iterator[Callable[..., Protocol]]:
    yield from make_protocols(redis_url)


@pytest.fixture
def lines(make: Callable[..., Protocol]) -> Protocol:
    """No task of the key may run before a minute has passed."""
    lines = make({"api": "1/m max-waiting 2"})
    lines.limiter["api", "a"].acquire()
    return lines


def park(lines: Protocol, kept: Kept, *tasks: str) -> list[str]:
    """Park tasks one after the other; return the outcomes."""
    outcomes = []
    for task in tasks:
        lines.now += 1_000
        outcomes.append(lines.park(task, ONE_KEY, kept=kept, may_run=False).outcome)
        lines.check()
    return outcomes


def ids_of(rows: list[Claimed], *, surplus: bool) -> list[str]:
    return [row.id for row in rows if row.surplus is surplus]


def backlog(lines: Protocol) -> int:
    return lines.limiter["api", "a"].status().waiting


def test_the_newest_waits_and_the_others_leave_at_once(lines: Protocol) -> None:
    assert park(lines, Kept.NEWEST, *"abcde") == ["parked"] * 5  # more than `max-waiting`
    assert backlog(lines) == 1
    rows = lines.claim(room=9)
    assert ids_of(rows, surplus=True) == list("abcd")
    assert not any(row.admitted for row in rows)
    lines.now += 60 * SECOND
    (row,) = lines.claim(room=9, settled=[row.token for row in rows])
    assert (row.id, row.admitted, row.surplus) == ("e", True, False)
    lines.claim(room=0, settled=[row.token])
    assert not lines.waiting()
    assert not [key for key in lines.client.keys("*") if b":line" in key or b":due:" in key]


def test_the_first_waits_and_the_others_do_not_join(lines: Protocol) -> None:
    assert park(lines, Kept.FIRST, *"abc") == ["parked", "surplus", "surplus"]
    assert park(lines, Kept.FIRST, "a") == ["parked"]  # it was sent twice
    lines.now += 60 * SECOND
    assert ids_of(lines.claim(room=9), surplus=False) == ["a"]
    assert park(lines, Kept.FIRST, "d") == ["parked"], "a claimed task does not wait"


def test_tasks_of_other_names_wait_beside_it(lines: Protocol) -> None:
    keys, refs = Keys(), lines.require(ONE_KEY).refs
    assert len({keys.line("q", refs, name) for name in ("", "a", "b")}) == 3
    lines.park("other", ONE_KEY, may_run=False)
    park(lines, Kept.NEWEST, "a")
    lines.now += 120 * SECOND
    assert backlog(lines) == 2
    assert ids_of(lines.claim(room=9), surplus=False) == ["other"]
    lines.now += 60 * SECOND
    assert ids_of(lines.claim(room=9), surplus=False) == ["a"]


def test_a_task_that_comes_back_gives_way(lines: Protocol) -> None:
    """It was claimed before the other one joined, whatever its worker did with it."""
    for kept in (Kept.NEWEST, Kept.FIRST):
        lines.now += 60 * SECOND
        park(lines, kept, f"old {kept}")
        (row,) = lines.claim(room=1)
        park(lines, kept, f"new {kept}")
        # It may have used its unit, so the other one waits for the next.
        lines.back("w", "own", row.token, status=ClaimStatus.STARTED)
        lines.check()
        assert backlog(lines) == 1
        rows = lines.claim(room=9)
        assert ids_of(rows, surplus=True) == [f"old {kept}"]
        lines.now += 60 * SECOND
        assert ids_of(lines.claim(room=9), surplus=False) == [f"new {kept}"]


def test_a_surplus_task_whose_worker_dies_is_surplus_again(lines: Protocol) -> None:
    park(lines, Kept.NEWEST, *"ab")
    assert ids_of(lines.claim("dead", 9), surplus=True) == ["a"]
    lines.now += 40 * SECOND
    lines.claim("w", 0)
    lines.back(lines.dead.decode(), "dead")
    lines.check()
    assert backlog(lines) == 1
    assert ids_of(lines.claim(room=9), surplus=True) == ["a"]


def test_a_newer_task_of_higher_priority_comes_first(lines: Protocol) -> None:
    lines.park("old", ONE_KEY, rank=3, kept=Kept.NEWEST, may_run=False)
    reply = lines.park("new", ONE_KEY, rank=1, kept=Kept.NEWEST, may_run=False)
    lines.check()
    assert reply.position == 1
    lines.now += 60 * SECOND
    rows = lines.claim(room=9)
    assert ids_of(rows, surplus=False) == ["new"]
    assert ids_of(rows, surplus=True) == ["old"]


@pytest.mark.parametrize("kind", ["line", "waiting", "due"])
def test_surplus_tasks_leave_although_the_server_has_lost_a_key(lines: Protocol, kind: str) -> None:
    lines.park("other", ["api"], queue="q", may_run=False)
    park(lines, Kept.NEWEST, *"abc")
    line, waiting = lines.keys.surplus("q", lines.require(ONE_KEY).refs, "task")
    due = lines.keys.queue("q").due
    lines.client.delete({"line": line, "waiting": waiting, "due": due}[kind])
    ended: list[str] = []
    for _ in range(9):
        rows = lines.claim(room=9)
        ended += ids_of(rows, surplus=True)
        lines.claim(room=0, settled=[row.token for row in rows])
        lines.now += 60 * SECOND
    assert ended == ["a", "b"]
    assert not lines.waiting()
    lines.check()


@pytest.mark.thorough
@pytest.mark.parametrize("kept", [Kept.NEWEST, Kept.FIRST])
def test_each_task_runs_or_ends_once(make: Callable[..., Protocol], kept: Kept) -> None:
    for chance in range(8):
        dice, lines = random.Random(chance), make({"api": "2/s burst 2", "all": "3/s"})
        lines.client.flushdb()
        lines.limiter.register()
        ended: list[str] = []
        sent = 0
        for _ in range(60):
            lines.now += dice.choice([1_000, 50_000, 400_000])
            for _ in range(dice.randrange(4)):
                limits: list[ItemLike] = [("api", dice.choice("ab")), "all"]
                rank = dice.choice([1, 3])
                outcome = lines.park(str(sent), limits, rank=rank, kept=kept, may_run=False).outcome
                ended += [str(sent)] if outcome == "surplus" else []
                sent += 1
                assert lines.limiter["all"].status().waiting <= 2
            rows = lines.claim(room=3)
            back = [row for row in rows if dice.random() < 0.2]
            lines.back("w", "own", *(row.token for row in back))
            ended += [row.id for row in rows if row not in back]
            lines.claim(room=0, settled=[row.token for row in rows])
            lines.check()
        for _ in range(20):
            rows = lines.claim(room=9)
            ended += [row.id for row in rows]
            lines.claim(room=0, settled=[row.token for row in rows])
            lines.now += SECOND
        assert not lines.waiting()
        assert sorted(ended, key=int) == [str(number) for number in range(sent)]
