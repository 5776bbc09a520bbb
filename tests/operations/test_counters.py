"""The counters of the scripts, unit by unit, against what calls and lines did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle import CostError, LimitValueError, Throttled
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import ItemLike, LimitRef
from celery_throttle.observe.observer import at_time
from celery_throttle.observe.status.records import record_totals
from celery_throttle.observe.totals import WAIT_BUCKETS
from celery_throttle.observe.values import ApiRefusal
from celery_throttle.operations.lines import discard
from tests.protocol import SECOND, Make, Protocol
from tests.sizes import examples
from tests.totals import claimed, joined, left
from tests.totals import granted as units_granted

UNIT = 1_000_000

LIMITS = {
    "api": "10/s burst 5",
    "mail": "1/s",
    "window": "3/m using fixed-window",
    "pair": "2 at once",
    "few": "1/h max-keys 2",
    "short": "1/h max-waiting 2",
    "queue": "1/s burst 3 using leaky-queue",
}


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make(LIMITS)


def totals(lines: Protocol, name: str) -> dict[str, int]:
    found = lines.client.hgetall(lines.keys.totals(name))
    found.pop(b"last_api_refusal", None)  # the only text
    return {counter.decode(): int(total) for counter, total in found.items()}


@contextmanager
def two_slots(lines: Protocol) -> Iterator[None]:
    with lines.limiter["pair"].slot(), lines.limiter["pair"].slot():
        yield


# Requests.


@pytest.mark.parametrize("name", ["api", "window", "queue"])
def test_units_granted(lines: Protocol, name: str) -> None:
    handle = lines.limiter[name]
    decisions = [
        handle.try_acquire(),
        handle.try_acquire(0.25, max_wait=None),
        handle.acquire_up_to(0.5),
        lines.limiter[name, "other"].acquire_up_to(9),
        lines.limiter.try_acquire([lines.limiter[name, "key"]], 2, max_wait=None),
        handle.peek(),
    ]
    granted = [decision.granted for decision in decisions]
    assert granted == [1, 0.25, 0.5, 5 if name == "api" else 3, 2, 0]
    assert totals(lines, name) == {"granted": sum(granted) * UNIT}


def test_a_request_of_several_limits_counts_at_each(lines: Protocol) -> None:
    assert lines.limiter.try_acquire(["api", "mail", lines.limiter["window", 1]], {"api": 3})
    granted = {name: totals(lines, name) for name in ("api", "mail", "window")}
    assert granted == {
        "api": {"granted": 3 * UNIT},
        "mail": {"granted": UNIT},
        "window": {"granted": UNIT},
    }
    assert not lines.limiter.try_acquire(["api", "mail"])
    assert totals(lines, "api") == granted["api"]
    assert totals(lines, "mail") == {"granted": UNIT, "refused_limit": 1}


@pytest.mark.parametrize("cost", [1, 0.5])
@pytest.mark.parametrize("name", ["mail", "window"])
def test_a_refusal_for_lack_of_units(lines: Protocol, name: str, cost: float) -> None:
    handle = lines.limiter[name, "key"]
    while handle.try_acquire():
        pass
    for _ in range(3):
        assert not handle.try_acquire(cost)
    assert totals(lines, name)["refused_limit"] == 4


def test_other_refusals(lines: Protocol) -> None:
    limiter = lines.limiter
    for key in "ab":
        assert limiter["few", key].try_acquire()
    assert not limiter["few", "c"].try_acquire()
    with pytest.raises(LimitValueError):
        limiter.try_acquire([limiter["few", key] for key in "xyz"])
    assert totals(lines, "few") == {"granted": 2 * UNIT, "refused_keys": 2}

    limiter["api"].pause(10)
    assert not limiter["api"].try_acquire()
    assert limiter["api"].acquire_up_to(3).granted == 0
    assert not limiter["api"].peek()
    with pytest.raises(CostError):
        limiter["api"].try_acquire(6)
    assert totals(lines, "api") == {"refused_paused": 2, "refused_cost": 1}

    with two_slots(lines), pytest.raises(Throttled), limiter["pair"].slot():
        pass
    assert totals(lines, "pair") == {"granted": 2 * UNIT, "refused_slots": 1}


def test_a_call_that_waits_is_refused_only_when_it_gives_up(lines: Protocol) -> None:
    limiter = lines.limiter
    for _ in range(3):
        assert limiter["mail"].acquire(max_wait=5)
    assert totals(lines, "mail") == {"granted": 3 * UNIT}
    with pytest.raises(Throttled):
        limiter["mail"].acquire(max_wait=0.5)
    assert totals(lines, "mail") == {"granted": 3 * UNIT, "refused_limit": 1}
    with two_slots(lines), pytest.raises(Throttled), limiter["pair"].slot(max_wait=3):
        pass
    assert totals(lines, "pair") == {"granted": 2 * UNIT, "refused_slots": 1}


def test_a_settlement_gives_units_back_or_takes_more(lines: Protocol) -> None:
    api = lines.limiter["api"]
    api.reserve(3).settle(1)
    assert totals(lines, "api") == {"granted": 3 * UNIT, "refunded": 2 * UNIT}
    api.reserve(1).settle(2.5)
    assert totals(lines, "api") == {"granted": 5.5 * UNIT, "refunded": 2 * UNIT}
    reserved = api.reserve(0.5)
    lines.now += 1
    lines.limiter["api"].define("20/s burst 9")
    reserved.settle(0)  # another definition is in force: nothing is given back
    assert totals(lines, "api") == {"granted": 6 * UNIT, "refunded": 2 * UNIT}


def test_an_api_that_refuses(lines: Protocol) -> None:
    for refused in (True, False, True):
        lines.limiter.learn(["api", lines.limiter["mail", "key"]], Feedback(refused=refused))
    assert totals(lines, "api") == totals(lines, "mail") == {"api_refusals": 2}
    last = lines.limiter["mail", "key"].status().last_api_refusal
    assert last == lines.limiter["mail"].status().last_api_refusal
    assert last == ApiRefusal(at_time(lines.now), "key", None, None)
    lines.now += SECOND
    lines.limiter.learn(["api"], Feedback(overloaded=True))
    lines.limiter.run_plan(
        lines.limiter.plans.learn(
            {LimitRef("mail", None): Feedback(refused=True)}, ("id 1", "shop.send")
        )
    )
    assert lines.limiter["api"].status().last_api_refusal == ApiRefusal(last.at, None, None, None)
    assert lines.limiter["mail"].status().last_api_refusal == ApiRefusal(
        at_time(lines.now), None, "id 1", "shop.send"
    )
    assert lines.client.pttl(lines.keys.totals("mail")) > 0
    for _ in range(2):  # without a record, and with one: it has no text
        assert lines.limiter["mail"].report(900).totals.api_refusals == 3
        lines.limiter.run_plan(record_totals(lines.limiter.observer))
    assert lines.client.exists(lines.keys.records("mail", "recent"))


def test_tasks_admitted_at_once_and_in_batches(lines: Protocol) -> None:
    call = lines.gate_call([(["api"], 2), (["mail", ("window", "k")], 1)])
    assert [reply[0] for reply in lines.store.run(call)] == [1, 1]
    assert [reply[0] for reply in lines.store.run(call)] == [1, 0]
    assert totals(lines, "api") == {"granted": 4 * UNIT}
    assert totals(lines, "mail") == totals(lines, "window") == {"granted": UNIT}


def test_a_time_after_which_totals_are_forgotten(lines: Protocol) -> None:
    eight_days = 8 * 86_400_000
    key = lines.keys.totals("api")

    def is_new() -> bool:
        left_ms = lines.client.pttl(key)
        lines.client.pexpire(key, 1000_000)
        return bool(left_ms > eight_days - 60_000)

    assert lines.limiter["api"].try_acquire()
    assert is_new()
    assert lines.limiter["api"].try_acquire(4)
    assert not is_new()
    assert not lines.limiter["api"].try_acquire()
    assert is_new()  # the first of its kind
    assert not lines.limiter["api"].try_acquire()
    assert not is_new()


# Lines.


def test_a_task_that_joins_a_line_and_is_claimed(lines: Protocol) -> None:
    assert lines.park("a", ["mail"]).outcome == "admitted"
    assert totals(lines, "mail") == {"granted": UNIT}
    for task in "bc":
        assert lines.park(task, ["mail", ("api", "k")], cost={"api": 2}).outcome == "parked"
        assert lines.park(task, ["mail", ("api", "k")], cost={"api": 2}).outcome == "parked"
    assert totals(lines, "mail") == {"granted": UNIT, "parked": 2}
    assert totals(lines, "api") == {"parked": 2}
    lines.now += SECOND
    assert len(lines.claim(room=2)) == 1
    assert totals(lines, "mail") == {"parked": 2, "4": 1, "granted": UNIT}
    # The task stands for one unit, and costs two.
    assert totals(lines, "api") == {"parked": 2, "4": 1, "granted": UNIT}


@pytest.mark.parametrize("bucket", range(WAIT_BUCKETS))
def test_a_wait_is_counted_in_the_first_bucket_that_is_as_long(
    lines: Protocol, bucket: int
) -> None:
    longest = 100_000 * 2 ** min(bucket, WAIT_BUCKETS - 2)
    waits = [(bucket, longest), (bucket + 1, longest + 1)]
    if bucket == WAIT_BUCKETS - 1:
        waits = [(bucket, longest + 1), (bucket, 1000 * longest)]
    expected = Counter[str]()
    for number, (counted, wait) in enumerate(waits):
        lines.park(str(number), ["api"], may_run=False)
        lines.now += wait
        assert len(lines.claim()) == 1
        expected[str(counted)] += 1
    found = totals(lines, "api")
    assert {name: found[name] for name in found if name.isdecimal()} == expected


def test_tasks_that_leave_without_units(lines: Protocol) -> None:
    lines.limiter["api"].pause(None)
    lines.park("expired", ["api"], expires=lines.now + SECOND)
    lines.park("too much", ["api"], cost=5)
    for number in range(4):
        lines.park(f"revoked {number}", ["api"], queue="p")
    lines.now += SECOND
    lines.limiter["api"].define("1/s")
    lines.limiter["api"].resume()
    assert [row.admitted for row in lines.claim(room=2)] == [False, False]
    lines.withdraw("w", "revoked 1", "unknown", queues=["p"])
    assert lines.limiter.run_plan(discard(lines.keys, "p")) == 3
    assert totals(lines, "api") == {
        "parked": 6,
        "handed_out": 2,
        "revoked": 1,
        "discarded": 3,
    }


def test_claims_that_go_back(lines: Protocol) -> None:
    for task in "abc":
        lines.park(task, ["api"], may_run=False)
    rows = lines.claim(room=3)
    lines.back("w", "own", rows[0].token)
    lines.set_aside("w", rows[1].token)
    lines.recall(rows[1].id)
    assert totals(lines, "api")["requeued"] == 2
    lines.now += 31 * SECOND
    lines.claim("other", room=0)
    lines.back("w", "dead")
    found = totals(lines, "api")
    assert (found["requeued"], found["lost_claims"]) == (3, 1)
    assert joined(found) == left(found) + 3


def test_a_claim_of_a_task_that_waits_again_does_not_go_back(lines: Protocol) -> None:
    lines.park("a", ["api"], may_run=False)
    (row,) = lines.claim()
    lines.park("a", ["api"], may_run=False, identity="a 1 0")
    lines.back("w", "own", row.token)
    found = totals(lines, "api")
    assert (found["parked"], "requeued" in found) == (2, False)


@pytest.mark.parametrize(
    ("name", "options", "outcome", "counter"),
    [
        ("short", {}, "full", "dropped_full"),
        ("api", {"cost": 6}, "never", "dropped_cost"),
        ("mail", {"max_wait": 10}, "late", "dropped_late"),
    ],
)
def test_tasks_that_do_not_join_a_line(
    lines: Protocol, name: str, options: dict[str, Any], outcome: str, counter: str
) -> None:
    for number in range(3):
        lines.park(str(number), [name])
    before = totals(lines, name)
    assert lines.park("dropped", [name], **options).outcome == outcome
    assert totals(lines, name) == before | {counter: 1}


def test_keys_that_do_not_join_a_line(lines: Protocol) -> None:
    for key in "ab":
        lines.park(key, [("few", key)])
    assert lines.park("c", [("few", "c")]).outcome == "crowded"
    assert totals(lines, "few") == {"granted": 2 * UNIT, "dropped_keys": 1}


# Sequences of anything.

_sets: list[Sequence[ItemLike]] = [
    ["api"],
    ["mail"],
    ["api", "mail"],
    [("window", "k"), "api"],
    [("mail", "k")],
    [("mail", "k"), ("api", "k")],
    ["pair"],
    [("short", "k")],
]
_names = ["api", "mail", "window", "pair", "short"]


@settings(
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False))
def test_each_task_that_joins_waits_or_is_counted_where_it_left(
    make: Make, dice: random.Random
) -> None:
    lines = make(LIMITS)
    lines.client.flushdb()
    lines.limiter.register()
    limits_of: dict[str, Sequence[ItemLike]] = {}
    granted, tokens = Counter[str](), list[int]()
    for number in range(60):
        lines.now += dice.choice([0, 50_000, SECOND, 40 * SECOND])
        move = dice.choice(["park"] * 4 + ["claim"] * 3 + ["back", "aside", "withdraw", "discard"])
        task = str(dice.randrange(number + 1))
        if move == "park":
            limits_of.setdefault(task, dice.choice(_sets))
            expires = dice.choice([0, 0, lines.now + SECOND])
            outcome = lines.park(task, limits_of[task], expires=expires).outcome
            granted.update(_names_of(limits_of[task]) if outcome == "admitted" else ())
        elif move == "claim":
            for row in lines.claim(room=2, ahead=20_000, settled=[], lease=10**9):
                granted.update(_names_of(limits_of[row.id]) if row.admitted else ())
                tokens.append(row.token)
        elif move == "withdraw":
            tokens += [row.token for row in lines.withdraw("w", task, lease=10**9)]
        elif move == "discard" and dice.random() < 0.2:
            lines.limiter.run_plan(discard(lines.keys, "q"))
        elif tokens:
            token = tokens.pop(dice.randrange(len(tokens)))
            if move == "aside":
                lines.set_aside("w", token)
                lines.recall(*limits_of)
            else:
                lines.back("w", "own", token)
        lines.check()
        waiting = Counter(name for one in lines.waiting() for name in _names_of(limits_of[one]))
        for name in _names:
            found = totals(lines, name)
            assert joined(found) == left(found) + waiting[name]
            assert units_granted(found) == granted[name] * UNIT
    assert claimed(totals(lines, "api")) <= granted["api"]


def _names_of(limits: Sequence[ItemLike]) -> list[str]:
    return [one if isinstance(one, str) else one[0] for one in limits]


def test_slots_whose_lease_expires(lines: Protocol) -> None:
    for number in range(2):
        lease = (1 + number) * SECOND
        assert (
            lines.park(str(number), ["pair"], holder=f"w {number}", lease=lease).outcome
            == "admitted"
        )
    lines.now += SECOND
    assert lines.park("next", ["pair"], holder="w 3").outcome == "admitted"
    assert totals(lines, "pair") == {"granted": 3 * UNIT, "lost_slots": 1}


def test_a_slot_whose_lease_expires_counts_for_its_limit_whatever_its_key(
    lines: Protocol,
) -> None:
    limit = "pair", ("a", "entries", "api")
    for holder in ("w 1", "w 2", "w 3"):
        assert lines.park(holder, [limit], holder=holder, lease=SECOND).outcome == "admitted"
        lines.now += SECOND
    assert totals(lines, "pair") == {"granted": 3 * UNIT, "lost_slots": 2}
    assert totals(lines, "api") == {}
