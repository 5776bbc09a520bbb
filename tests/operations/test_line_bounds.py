"""max-keys and max-waiting: lines on a real server, with the time as an argument."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from celery_throttle.limits.key import ItemLike
from tests.protocol import SECOND, Make, Protocol, make_protocols


@pytest.fixture
def make(any_server_url: str) -> Iterator[Make]:
    yield from make_protocols(any_server_url)


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make(
        {
            "mail": "1/s max-keys 2",
            "api": "10/s",
            "slots": "1 at once max-keys 2",
            "short": "1/s max-waiting 2",
            "host": ["1/h max-waiting 5", "2 at once max-waiting 3"],
        }
    )


def key_cap(lines: Protocol, name: str = "mail") -> int:
    count: int = lines.client.zcard(f"{{throttle}}:key-cap:{name}")
    return count


def test_a_task_of_one_key_too_many_joins_no_line(lines: Protocol) -> None:
    for key in "ab":
        assert lines.park(key, [("mail", key)]).outcome == "admitted"
        assert lines.park(f"{key}2", [("mail", key)]).outcome == "parked"
    assert lines.park("c", [("mail", "c")]).outcome == "crowded"
    assert lines.park("c", ["api", ("mail", "c")]).outcome == "crowded"
    assert lines.park("a3", [("mail", "a")]).outcome == "parked"
    assert lines.waiting() == ["a2", "a3", "b2"]
    assert lines.limiter["api"].peek().remaining == 1
    lines.check()
    lines.now += SECOND
    # Both keys still have waiting tasks.
    assert lines.park("c", [("mail", "c")]).outcome == "crowded"
    assert len(lines.claim(room=5)) == 2
    lines.now += SECOND
    assert lines.park("c", [("mail", "c")]).outcome == "admitted"


def test_a_key_that_only_waits_is_in_use(lines: Protocol) -> None:
    for key in "ab":
        lines.limiter["mail", key].pause(60)
        assert lines.park(key, [("mail", key)]).outcome == "parked"
    assert lines.park("c", [("mail", "c")]).outcome == "crowded"
    refused = lines.limiter["mail", "c"].try_acquire()
    assert (refused.allowed, refused.retry_after) == (False, 1.0)  # nobody knows
    assert lines.client.pttl("{throttle}:key-cap:mail") == -1
    lines.withdraw("w", "b")
    assert lines.park("c", [("mail", "c")]).outcome == "admitted"
    assert lines.park("b", [("mail", "b")]).outcome == "crowded"


def test_a_key_whose_tasks_wait_at_another_limit_is_in_use(lines: Protocol) -> None:
    lines.park("x", ["api"])
    for number in range(5):
        outcome = lines.park(str(number), ["api", ("mail", number)]).outcome
        assert outcome == ("parked" if number < 2 else "crowded")
    assert lines.waiting() == ["0", "1"]
    # In a line of another queue as well: the key is in use until both have ended.
    assert lines.park("other", ["api", ("mail", 0)], queue="p").outcome == "parked"
    lines.withdraw("w", "0")
    assert lines.park("2", ["api", ("mail", 2)]).outcome == "crowded"
    lines.withdraw("w", "other", queues=["p"])
    assert lines.park("2", ["api", ("mail", 2)]).outcome == "parked"
    lines.check()


def test_a_claim_that_goes_back_finds_its_place(lines: Protocol) -> None:
    lines.limiter["mail", "a"].pause(1)
    lines.park("a", [("mail", "a")])
    lines.now += SECOND
    (claim,) = lines.claim("w")
    lines.now += SECOND
    assert lines.limiter["mail", "b"].try_acquire()
    assert lines.limiter["mail", "c"].try_acquire()
    lines.back("w", "own", claim.token)  # it was here before, and is not lost
    lines.check()
    assert key_cap(lines) == 3
    lines.now += SECOND
    assert lines.limiter["mail", "b"].try_acquire()
    assert not lines.limiter["mail", "c"].try_acquire()
    assert [row.id for row in lines.claim("w")] == ["a"]
    lines.now += SECOND
    assert lines.limiter["mail", "c"].try_acquire()
    assert key_cap(lines) == 1


def test_a_line_from_before_there_was_a_bound_goes_on(lines: Protocol) -> None:
    lines.limiter["mail"].define("1/s")
    for key in "abc":
        lines.limiter["mail", key].pause(10)
        lines.park(key, [("mail", key)])
    lines.limiter["mail"].define("1/s max-keys 1")
    assert key_cap(lines) == 0
    assert lines.park("c2", [("mail", "c")]).outcome == "parked"
    lines.now += 10 * SECOND
    assert sorted(row.id for row in lines.claim(room=9)) == ["a", "b", "c"]
    assert key_cap(lines) == 3
    lines.now += 2 * SECOND
    assert [row.id for row in lines.claim(room=9)] == ["c2"]
    lines.check()


def test_a_gate_leaves_a_key_for_which_there_is_no_room(lines: Protocol) -> None:
    call = lines.gate_call([([("mail", key)], 1) for key in "abc"])
    assert [reply[0] for reply in lines.store.run(call)] == [1, 1, 0]
    assert lines.park("c", [("mail", "c")]).outcome == "crowded"
    lines.now += SECOND
    call = lines.gate_call([([("mail", key)], 1) for key in "cab"])
    assert [reply[0] for reply in lines.store.run(call)] == [1, 1, 0]


def test_a_gate_does_not_book_the_place_of_a_key_ahead(lines: Protocol) -> None:
    for key in "ab":
        assert lines.limiter["mail", key].try_acquire()
    lines.now += SECOND - 1
    call = lines.gate_call([([("mail", "c")], 1)])
    assert lines.store.run(call) == [[0]]
    assert key_cap(lines) == 2


def test_a_task_that_names_more_keys_than_there_may_be_never_passes(lines: Protocol) -> None:
    assert lines.park("x", [("mail", key) for key in "abc"]).outcome == "crowded"
    assert key_cap(lines) == 0


def test_keys_of_slots_that_tasks_hold(lines: Protocol) -> None:
    for key in "ab":
        assert lines.park(key, [("slots", key)]).outcome == "admitted"
    assert lines.park("a2", [("slots", "a")]).outcome == "parked"
    assert lines.park("c", [("slots", "c")]).outcome == "crowded"
    lines.now += 30 * SECOND
    assert lines.park("c", [("slots", "c")]).outcome == "admitted"
    assert lines.park("b2", [("slots", "b")]).outcome == "crowded"
    lines.check()


# Tasks that wait.


def test_no_more_tasks_wait_than_may(lines: Protocol) -> None:
    lines.park("x", ["short"])
    assert lines.park("a", ["short"]).outcome == "parked"
    assert lines.park("b", ["short"]).outcome == "parked"
    assert lines.park("c", ["short"]).outcome == "full"
    assert lines.park("c", ["short"], queue="p").outcome == "full"
    assert lines.park("a", ["short"]).outcome == "parked"  # it waits already
    assert lines.park("k", [("short", "k")]).outcome == "admitted"  # each key on its own
    lines.now += SECOND
    assert [row.id for row in lines.claim()] == ["a"]
    assert lines.park("c", ["short"]).outcome == "parked"
    lines.limiter["short"].define("1/s max-waiting 3")
    assert lines.park("d", ["short"]).outcome == "parked"
    assert lines.park("e", ["short"]).outcome == "full"
    lines.limiter["short"].define("1/s")
    assert lines.park("e", ["short"]).outcome == "parked"
    lines.limiter["short"].define("1/s max-waiting 1")
    assert lines.waiting() == ["b", "c", "d", "e"]
    lines.check()


def test_the_least_of_several_bounds_counts_at_every_limit_of_a_task(lines: Protocol) -> None:
    lines.park("x", ["host"])
    for number in range(3):
        assert lines.park(str(number), ["host"]).outcome == "parked"
    assert lines.park("3", ["host"]).outcome == "full"
    assert lines.park("3", ["api", "host"]).outcome == "full"
    assert lines.limiter["api"].peek().remaining == 1


def test_a_task_that_goes_back_is_never_turned_away(lines: Protocol) -> None:
    lines.park("x", ["short"])
    lines.park("a", ["short"])
    lines.now += SECOND
    (claim,) = lines.claim("w")
    lines.park("b", ["short"])
    lines.park("c", ["short"])
    lines.back("w", "own", claim.token)
    assert lines.waiting() == ["a", "b", "c"]
    assert lines.park("d", ["short"]).outcome == "full"
    lines.check()


# Both, in random traffic.


def lined(lines: Protocol, name: str) -> int:
    """Return the number of lines that count for a key cap."""
    rows = lines.client.zrange(f"{{throttle}}:key-cap:{name}", 0, -1, withscores=True)
    return sum(int(score) // 2**53 for _, score in rows)


def test_random_traffic(make: Make) -> None:
    lines = make(
        {
            "mail": "1/2s max-keys 4 max-waiting 3",
            "slots": "1 at once max-keys 3",
            "api": "2/s burst 3 max-waiting 9",
        }
    )
    dice = random.Random(11)
    held: list[tuple[str, int, tuple[ItemLike, ...]]] = []
    sent: dict[str, tuple[str, tuple[ItemLike, ...]]] = {}
    outcomes = set()
    for number in range(800):
        lines.now += dice.choice([0, 1_000, 50_000, 300_000])
        move, worker = dice.random(), dice.choice("ab")
        if move < 0.5:
            mail, slots = ("mail", dice.randrange(9)), ("slots", dice.randrange(9))
            requirement: tuple[ItemLike, ...] = dice.choice(
                [(mail,), ("api", mail), (slots,), ("api",)]
            )
            queue = dice.choice("pq")
            sent[str(number)] = queue, requirement
            outcomes.add(lines.park(str(number), requirement, queue=queue).outcome)
        elif move < 0.75:
            rows = lines.claim(worker, room=3, queues=["p", "q"], ahead=20_000, lease=10**9)
            held += [(worker, row.token, sent[row.id][1]) for row in rows]
        elif move < 0.85 and lines.waiting():
            task = dice.choice(lines.waiting())
            queue, requirement = sent[task]
            held += [
                (worker, row.token, requirement)
                for row in lines.withdraw(worker, task, queues=[queue])
            ]
        elif held:
            owner, token, requirement = held.pop(dice.randrange(len(held)))
            if dice.random() < 0.3:
                lines.back(owner, "own", token)
                continue
            released = [(ref, f"{owner} {token}") for ref in requirement if ref[0] == "slots"]
            lines.claim(owner, room=0, settled=[token], lease=10**9, released=released)
        lines.check()
        waiting = {sent[task] for task in lines.waiting()}
        for name in ("mail", "slots"):
            keyed = [ref for _, requirement in waiting for ref in requirement if ref[0] == name]
            assert lined(lines, name) == len(keyed)
    assert outcomes == {"admitted", "parked", "crowded", "full"}
