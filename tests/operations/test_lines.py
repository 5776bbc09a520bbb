"""Lines and claims on a real server, with the time as an argument."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import redis

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.limits.key import ItemLike, LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.lines import (
    Claimant,
    WithdrawPlans,
    discard,
    recall_call,
)
from celery_throttle.operations.waiting import Mode, quarantine_call
from tests.protocol import SECOND, Make, Protocol, make_protocols

LIMITS = {
    "api": "10/s",
    "mail": "1/s",
    "bulk": "1000/s burst 10",
    "slow": "1/h",
    "slots": "2 at once",
    "github": ["10/s", "1 at once"],
    "queue": "10/s burst 3 using leaky-queue",
    "window": "5/s using fixed-window",
}


@pytest.fixture
def make(any_server_url: str) -> Iterator[Make]:
    yield from make_protocols(any_server_url)


@pytest.fixture
def lines(make: Make) -> Protocol:
    return make(LIMITS)


def test_a_free_limit_admits_and_a_full_one_parks(lines: Protocol) -> None:
    assert lines.park("a", ["api"]).outcome == "admitted"
    parked = lines.park("b", ["api"])
    assert (parked.outcome, parked.position, parked.wait) == ("parked", 1, 100_000)
    lines.check()


def test_without_a_process_it_waits_although_a_unit_is_free(lines: Protocol) -> None:
    parked = lines.park("a", ["api"], may_run=False)
    assert (parked.outcome, parked.position, parked.wait) == ("parked", 1, 0)
    lines.check()
    assert [task for _, task in lines.drain(0.001)] == ["a"]


def test_without_a_process_nothing_is_done_if_only_that_is_missing(lines: Protocol) -> None:
    for _ in range(2):
        assert lines.park("a", ["api"], mode=Mode.NO_PROCESS).outcome == "alone"
    assert lines.park("b", ["api"]).outcome == "admitted"
    assert lines.park("a", ["api"], mode=Mode.NO_PROCESS).outcome == "parked"
    lines.now += SECOND
    assert lines.park("c", ["api"], mode=Mode.NO_PROCESS).outcome == "parked"
    lines.check()
    assert [task for _, task in lines.drain(0.2)] == ["a", "c"]


def test_a_start_is_booked_as_far_ahead_as_is_allowed(make: Make) -> None:
    lines = make({"fast": "100/s"})
    waits = [lines.park(str(n), ["fast"], horizon=20_000).wait for n in range(3)]
    assert waits == [0, 10_000, 20_000]
    for mode in (Mode.NO_PROCESS, Mode.MAY_RUN):
        parked = lines.park("late", ["fast"], horizon=20_000, mode=mode)
        assert (parked.outcome, parked.wait) == ("parked", 30_000)
    lines.check()


def test_what_arrives_later_joins_the_end_although_a_unit_is_free(lines: Protocol) -> None:
    lines.park("a", ["api"])
    lines.park("b", ["api"])
    lines.now += SECOND
    assert lines.park("c", ["api"]).outcome == "parked"
    assert [task for _, task in lines.drain(0.3)] == ["b", "c"]


def test_a_claim_is_paced_exactly_and_books_ahead(lines: Protocol) -> None:
    for number in range(4):
        lines.park(str(number), ["api"])
    first = lines.claim(room=5, ahead=20_000)
    assert first == []
    assert lines.ask == 80_000
    lines.now += 85_000
    (claim,) = lines.claim(room=5, ahead=20_000)
    assert (claim.id, claim.starts, claim.admitted) == ("1", 15_000, True)
    lines.now += 95_000
    (claim,) = lines.claim(room=5, ahead=20_000)
    assert claim.starts == 20_000


@pytest.mark.parametrize("text", ["10/s", "3/s burst 4", "7/s burst 2 using token-bucket"])
def test_starts_are_never_over_and_never_idle(make: Make, text: str) -> None:
    lines = make({"api": text})
    limit = Limit.parse(text)
    for number in range(40):
        lines.park(str(number), ["api"])
    times = [at for at, _ in lines.drain(3)]
    assert isinstance(limit.rate, Rate)
    numerator, denominator = limit.rate.interval
    for i, begin in enumerate(times):
        for j in range(i, len(times)):
            window = times[j] - begin
            assert j - i + 1 <= limit.burst + Fraction(window * denominator, numerator)
    assert len(times) >= 3 * SECOND * denominator // numerator - 1


@pytest.mark.parametrize(
    "text",
    [
        "10/s using fixed-window",
        "10/s using fixed-window from first-request",
        "10/s using sliding-log",
        "10/s using sliding-window",
        "12/s using sliding-window parts 4",
        "12/s using sliding-window parts 5 oldest dropped",
        "8/s burst 50 using leaky-queue",
        "3/s burst 4 using leaky-bucket",
    ],
)
def test_starts_are_those_of_a_caller_that_never_rests(make: Make, text: str) -> None:
    lines = make({"api": text})
    limits, ref = MemoryLimits({"api": text}), LimitRef("api", None)
    begin = at = lines.now
    expected: list[int] = []
    while at < begin + 3 * SECOND:
        decision = limits.acquire({ref: 1}, at)
        if decision:
            expected.append(at + round(decision.delay * SECOND))
        else:
            at += round((decision.retry_after or 0) * SECOND)
    expected = [at for at in expected if at < begin + 3 * SECOND]
    outcomes = [lines.park(str(number), ["api"]).outcome for number in range(49)]
    starts = [begin] * outcomes.count("admitted")
    starts += [at for at, _ in lines.drain(3, step=5_000, room=50, ahead=20_000)]
    assert [at for at in starts if at < begin + 3 * SECOND] == expected
    lines.check()


def test_order_is_by_priority_then_age(lines: Protocol) -> None:
    lines.park("first", ["api"])
    for task, rank in [("a", 5), ("b", 5), ("urgent", 0), ("c", 5), ("later", 9)]:
        lines.park(task, ["api"], rank=rank)
    assert [task for _, task in lines.drain(1)] == ["urgent", "a", "b", "c", "later"]


def test_a_new_first_of_a_line_that_costs_less_does_not_wait_for_more(lines: Protocol) -> None:
    lines.limiter["bulk"].try_acquire(10)
    lines.park("all", ["bulk"], cost=10, rank=5)
    lines.park("one", ["bulk"], rank=0)
    lines.now += 1_000
    assert [row.id for row in lines.claim()] == ["one"]
    lines.check()


@pytest.mark.parametrize("limits", [["bulk"], ["bulk", ("slow", "k")]])
def test_who_follows_one_that_was_withdrawn_does_not_wait_for_more(
    lines: Protocol, limits: list[ItemLike]
) -> None:
    lines.limiter["bulk"].try_acquire(10)
    lines.park("all", ["bulk"], cost=10)
    lines.park("one", limits)
    lines.withdraw("w", "all")
    lines.now += 1_000
    assert [row.id for row in lines.claim()] == ["one"]
    lines.check()


def test_lines_of_one_limit_are_served_in_turn(lines: Protocol) -> None:
    lines.park("x", ["api"])
    for number in range(6):
        lines.park(f"big{number}", ["api", ("bulk", "big")])
    lines.park("small0", ["api", ("bulk", "small")])
    lines.park("small1", ["api", ("bulk", "small")])
    assert [task for _, task in lines.drain(0.61)][:4] == ["big0", "small0", "big1", "small1"]


def test_limits_have_their_turns_where_processes_are_few(lines: Protocol) -> None:
    """All are due at each moment, and one process is free at a time."""
    for number in range(6):
        for name in ("api", "bulk", "queue"):
            lines.park(f"{name}{number}", [name], may_run=False)
    taken = []
    for _ in range(9):
        lines.now += 200_000
        taken += [row.id.rstrip("012345") for row in lines.claim()]
    assert sorted(taken) == sorted(["api", "bulk", "queue"] * 3)
    lines.check()


def test_a_line_moves_to_the_limit_that_blocks_it(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("y", ["mail"])
    lines.park("both", ["api", "mail"])
    lines.park("only", ["api"])
    lines.check()
    begin = lines.now
    taken = {task: at - begin for at, task in lines.drain(1.2)}
    assert taken["only"] < 250_000
    assert taken["both"] > 900_000
    lines.check()


def test_a_claim_says_where_its_task_waited(lines: Protocol) -> None:
    lines.park("x", ["api"])
    for task, rank in (("a", 1), ("b", 1), ("c", 0), ("d", 1)):
        lines.park(task, ["slow", ("api", "eu")], rank=rank)
    lines.limiter["api", "eu"].pause(3600)
    lines.now += 5000 * SECOND
    found = []
    for _ in range(2):
        lines.now += 3600 * SECOND
        (row,) = lines.claim()
        found.append((row.id, row.position, row.field))
    lines.back("w", "own", row.token)  # as it was
    lines.now += 3600 * SECOND
    (again,) = lines.claim()
    assert found == [("c", 1, "slow"), ("b", 1, "slow")]
    assert (again.id, again.position) == ("b", 1)


def test_parking_is_idempotent(lines: Protocol) -> None:
    lines.park("x", ["api"])
    assert lines.park("a", ["api"]).position == 1
    assert lines.park("b", ["api"]).position == 2
    again = lines.park("a", ["api"])
    assert (again.outcome, again.position) == ("parked", 1)
    assert lines.waiting() == ["a", "b"]


def test_a_redelivered_message_is_known_until_its_acknowledgement_is_told(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("a", ["api"])
    lines.drain(0.3)
    assert lines.park("a", ["api"], redelivered=True).outcome == "known"
    lines.park("y", ["mail"], acknowledged=["a 0 0"])
    assert lines.park("a", ["api"], redelivered=True).outcome == "admitted"


def test_too_long_a_wait_takes_nothing(lines: Protocol) -> None:
    lines.park("x", ["api"])
    for number in range(5):
        assert lines.park(str(number), ["api"], max_wait=500_000).outcome == "parked"
    assert lines.park("late", ["api"], max_wait=500_000).outcome == "late"
    assert "late" not in lines.waiting()


def test_an_expired_task_leaves_without_quota(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("gone", ["api"], expires=lines.now + 50_000)
    lines.park("next", ["api"])
    lines.now += 100_000
    gone, following = lines.claim(room=5)
    assert (gone.id, gone.admitted) == ("gone", False)
    assert (following.id, following.admitted) == ("next", True)


def test_a_revoked_task_is_withdrawn_without_quota(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("revoked", ["api"])
    (row,) = lines.withdraw("w", "revoked", "elsewhere")
    assert (row.id, row.admitted) == ("revoked", False)
    lines.check()
    lines.now += 100_000
    assert lines.park("next", ["api"]).outcome == "admitted"


def test_a_cost_that_no_longer_fits_is_handed_out_at_once(lines: Protocol) -> None:
    lines.limiter["bulk"].define("1/s burst 3")
    lines.park("x", ["bulk"], cost=3)
    lines.park("big", ["bulk"], cost=3)
    lines.limiter["bulk"].define("1/s burst 2")
    (row,) = lines.claim()
    assert (row.id, row.admitted) == ("big", False)


def test_a_change_of_the_limit_is_in_force_for_those_that_wait(lines: Protocol) -> None:
    lines.limiter["api"].define("1/h")
    lines.park("x", ["api"])
    lines.park("a", ["api"])
    assert lines.claim() == []
    lines.limiter["api"].define("100/s")
    lines.now += 10_000
    assert [row.id for row in lines.claim()] == ["a"]


def test_the_claims_of_a_silent_worker_go_back_to_the_head(lines: Protocol) -> None:
    lines.park("x", ["bulk"], cost=10)
    for number in range(5):
        lines.park(str(number), ["bulk"])
    lines.now += 10_000
    taken = lines.claim("dying", room=2, lease=SECOND)
    assert [row.id for row in taken] == ["0", "1"]
    lines.now += SECOND - 1
    lines.claim("other", room=0)
    assert lines.dead == b""
    lines.now += 1
    lines.claim("other", room=0)
    assert lines.dead == b"dying"
    assert lines.back("dying", "dead", most=1) == 1
    assert lines.back("dying", "dead", most=1) == 0
    lines.check()
    assert [task for _, task in lines.drain(0.1)] == ["0", "1", "2", "3", "4"]


def test_claims_go_back_however_long_nobody_was_there(lines: Protocol) -> None:
    lines.park("x", ["bulk"], cost=10)
    lines.park("a", ["bulk"])
    lines.now += 10_000
    lines.claim("dying")
    assert lines.client.pttl("{throttle}:workers") == -1
    lines.now += 400 * 86_400 * SECOND
    lines.claim("other", room=0)
    assert lines.dead == b"dying"
    lines.back("dying", "dead")
    assert [row.id for row in lines.claim("other")] == ["a"]
    lines.claim("other", room=0, settled=[1])
    assert not lines.client.exists("{throttle}:workers", "{throttle}:claims:other")


def test_the_first_claim_after_the_clock_steps_back_reports_a_silent_worker(
    lines: Protocol,
) -> None:
    for task in "xab":
        lines.park(task, ["bulk"], cost=10 if task == "x" else 1)
    lines.now += 10_000
    lines.claim("dying", room=1, lease=SECOND)
    lines.now += 30 * SECOND
    lines.claim("other", room=1, lease=60 * SECOND)
    lines.now -= 20 * SECOND
    lines.claim("third", room=0)
    assert lines.dead == b"dying"


def test_a_worker_that_is_heard_of_again_keeps_its_claims(lines: Protocol) -> None:
    lines.park("x", ["bulk"], cost=10)
    lines.park("a", ["bulk"])
    lines.now += 10_000
    lines.claim("slow", lease=SECOND)
    lines.now += 2 * SECOND
    lines.claim("slow", room=0, lease=SECOND)
    assert lines.back("slow", "dead") == 0
    assert lines.waiting() == []


def test_a_retry_that_waits_is_not_replaced_by_the_run_it_came_from(lines: Protocol) -> None:
    lines.park("x", ["bulk"], cost=10)
    lines.park("a", ["bulk"], message=b"first")
    lines.now += 10_000
    (claim,) = lines.claim("w", lease=SECOND)
    lines.park("y", ["bulk"], cost=9)
    lines.park("a", ["bulk"], message=b"retry")
    lines.back("w", "own", claim.token)
    lines.now += 10_000
    assert [row.message for row in lines.claim(room=5)] == [b"retry"]
    lines.check()


def test_only_queues_that_a_worker_consumes(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("a", ["api"], queue="q")
    lines.park("b", ["api"], queue="other")
    lines.now += SECOND
    assert [row.id for row in lines.claim(room=5, queues=["other"])] == ["b"]
    lines.check()


def test_a_settled_claim_is_gone(lines: Protocol, any_server_url: str) -> None:
    lines.park("x", ["api"])
    lines.park("a", ["api"])
    lines.now += 100_000
    (claim,) = lines.claim()
    with redis.Redis.from_url(any_server_url) as client:
        assert client.hlen("{throttle}:claims:w") == 1
        lines.claim(room=0, settled=[claim.token])
        assert client.hlen("{throttle}:claims:w") == 0


def test_many_workers_do_not_all_ask_for_the_same_unit(lines: Protocol) -> None:
    """Empty claims must not increase in proportion to workers."""
    lines.limiter["api"].define("20/s")
    lines.park("x", ["api"])
    for number in range(200):
        lines.park(str(number), ["api"])
    calls = {}
    for workers in (2, 40):
        begin, taken, asks = lines.now, 0, 0
        due = {f"w{number}": lines.now + number * 1_000 for number in range(workers)}
        while lines.now < begin + 4 * SECOND:
            worker = min(due, key=lambda name: due[name])
            lines.now = max(lines.now, due[worker])
            rows = lines.claim(worker, room=1, ahead=20_000)
            taken += len(rows)
            asks += 1
            due[worker] = lines.now + max(1_000, lines.ask)
            lines.claim(worker, room=0, queues=[], settled=[row.token for row in rows])
        assert taken >= 79
        calls[workers] = asks - taken
    assert calls[40] < 4 * calls[2] + 2 * 40 * 4  # at most one call a second and worker, and some


def test_a_line_keeps_its_place_while_a_limit_is_not_known(lines: Protocol) -> None:
    lines.park("x", ["api"])
    lines.park("a", ["api"])
    lines.park("b", ["api"])
    lines.client.delete("{throttle}:limits")
    lines.now += SECOND
    assert lines.claim(room=2, registered=False) == []
    assert (lines.ask, lines.waiting()) == (-1, ["a", "b"])
    lines.limiter.register()
    lines.now += SECOND
    assert [(row.id, row.admitted) for row in lines.claim(registered=False)] == [("a", True)]
    lines.client.delete("{throttle}:limits")
    lines.now += SECOND
    assert [(row.id, row.admitted) for row in lines.claim(registered=True)] == [("b", False)]


def test_a_line_that_begins_wakes_a_sleeping_worker(lines: Protocol, any_server_url: str) -> None:
    with redis.Redis.from_url(any_server_url) as client, client.pubsub() as heard:
        heard.subscribe("{throttle}:wake:idle")
        heard.get_message(timeout=5)
        lines.claim("idle")
        lines.park("x", ["api"])
        lines.park("a", ["api"])
        message = heard.get_message(timeout=5)
        assert message is not None
        assert message["channel"] == b"{throttle}:wake:idle"


def test_a_claim_looks_only_at_what_is_due(lines: Protocol, any_server_url: str) -> None:
    """Law 5: with 3,000 lines at other limits, a claim makes as many calls as with 30."""
    with redis.Redis.from_url(any_server_url) as client:
        calls = []
        for count in (30, 3_000):
            for number in range(count):
                lines.park(f"{count}x{number}", [("slow", f"{count}x{number}")])
                lines.park(f"{count}y{number}", [("slow", f"{count}x{number}")])
            lines.now += SECOND // 2
            assert lines.park("x", ["api"]).outcome == "admitted"
            lines.park(f"{count}", ["api"])
            lines.now += 100_000
            client.config_resetstat()
            assert [row.id for row in lines.claim(room=1)] == [str(count)]
            stats = client.info("commandstats")
            calls.append(sum(about["calls"] for about in stats.values()))
        assert calls[1] <= calls[0] + 2


def test_random_traffic_keeps_every_invariant(lines: Protocol) -> None:
    dice = random.Random(7)
    sets: list[Sequence[ItemLike]] = [
        ["api"],
        ["mail"],
        ["api", "mail"],
        [("bulk", "k"), "api"],
        [("mail", "k")],
        ["slots"],
        ["github"],
        [("slots", "k"), "api"],
        ["queue"],
        ["queue", "slots"],
        ["window"],
    ]
    named: list[ItemLike] = ["slots", "github", ("slots", "k")]
    held: list[tuple[str, int]] = []
    arrived, done = 0, Counter[str]()
    for _ in range(600):
        lines.now += dice.choice([0, 1_000, 50_000, 300_000])
        move = dice.random()
        worker = dice.choice("ab")
        if move < 0.5:
            outcome = lines.park(
                str(arrived), dice.choice(sets), rank=dice.choice([0, 3]), queue=dice.choice("pq")
            ).outcome
            assert outcome in ("admitted", "parked", "full")
            done[str(arrived)] += outcome != "parked"
            arrived += 1
        elif move < 0.8:
            rows = lines.claim(worker, room=3, queues=["p", "q"], ahead=20_000, lease=10**9)
            held += [(worker, row.token) for row in rows]
            done.update(row.id for row in rows)
        elif held:
            owner, token = held.pop(dice.randrange(len(held)))
            released = [(reference, f"{owner} {token}") for reference in named]
            lines.claim(owner, room=0, settled=[token], lease=10**9, released=released)
        elif dice.random() < 0.5:
            released = [(dice.choice(named), f"task {dice.randrange(arrived + 1)}")]
            lines.claim(worker, room=0, lease=10**9, released=released)
        lines.check()
        for reference in named:
            limit = lines.limiter[reference].peek(0)
            assert 0 <= limit.remaining <= limit.burst
    assert sorted(lines.waiting()) == sorted(
        str(number) for number in range(arrived) if not done[str(number)]
    )
    assert max(done.values()) == 1


# Slots.


def test_a_slot_is_taken_at_the_start_and_waited_for(lines: Protocol) -> None:
    assert lines.park("a", ["slots"]).outcome == "admitted"
    assert lines.park("b", ["slots"], holder="b").outcome == "admitted"
    parked = lines.park("c", ["slots"])
    # When it could run at the latest; when a slot will be given back, nobody knows.
    assert (parked.outcome, parked.wait, parked.expected) == ("parked", 30 * SECOND, 0)
    lines.check()
    lines.now += SECOND
    assert lines.claim(room=5) == []
    assert lines.claim(room=5, released=[("slots", "nobody")]) == []
    (row,) = lines.claim(room=5, released=[("slots", "b")])
    assert (row.id, row.admitted) == ("c", True)
    lines.check()


def test_a_slot_that_is_given_back_wakes_those_who_wait(
    lines: Protocol, any_server_url: str
) -> None:
    for task in "abc":
        lines.park(task, ["slots"], holder=task)
    lines.claim("idle", room=1)
    with redis.Redis.from_url(any_server_url) as client, client.pubsub() as heard:
        heard.subscribe("{throttle}:wake:idle")
        heard.get_message(timeout=5)
        lines.claim("busy", room=0, released=[("slots", "a")])
        message = heard.get_message(timeout=5)
        assert message is not None
        assert message["type"] == "message"
    assert [row.id for row in lines.claim("idle")] == ["c"]


def test_slots_are_held_by_claims_until_they_are_given_back(lines: Protocol) -> None:
    for task in "abcdef":
        lines.park(task, ["slots"], holder=task)
    released: list[tuple[ItemLike, str]] = [("slots", "a"), ("slots", "b")]
    rows = lines.claim("w", room=5, released=released)
    assert [row.id for row in rows] == ["c", "d"]
    assert lines.claim("w", room=5, settled=[row.token for row in rows]) == []  # it may run still
    rows = lines.claim("w", room=5, released=[("slots", f"w {rows[0].token} {rows[0].id}")])
    assert [row.id for row in rows] == ["e"]
    lines.back("w", "own", rows[0].token)  # it was not started, so its slot is free
    assert [row.id for row in lines.claim("w", room=5)] == ["e"]
    lines.check()


def test_the_slots_of_a_silent_worker_go_back_with_its_claims(lines: Protocol) -> None:
    for task in "abc":
        lines.park(task, ["slots"], holder=task)
    (row,) = lines.claim("dying", lease=SECOND, released=[("slots", "a")])
    lines.park("d", ["slots"])
    lines.now += SECOND
    lines.claim("other", room=0)
    assert lines.dead == b"dying"
    lines.back("dying", "dead")
    assert [task.id for task in lines.claim("other", room=5)] == ["c"]
    assert row.id == "c"
    lines.check()


def test_a_slot_whose_lease_ran_out_is_free(lines: Protocol) -> None:
    for task in "ab":
        lines.park(task, ["slots"], lease=10 * SECOND)
    lines.park("c", ["slots"])
    lines.now += 10 * SECOND - 1
    assert lines.claim() == []
    lines.now += 1
    assert [row.id for row in lines.claim()] == ["c"]


def test_a_slot_is_not_booked_on_a_lease_that_is_about_to_run_out(lines: Protocol) -> None:
    """Its holder may renew it until then."""
    for task in "ab":
        lines.park(task, ["slots"], lease=10 * SECOND)
    lines.park("c", ["slots"])
    lines.now += 10 * SECOND - 1
    assert lines.claim(ahead=20_000) == []


def test_a_slot_that_cannot_be_booked_is_not_asked_for_again_and_again(lines: Protocol) -> None:
    """Nor does it delay other lines that are due."""
    for task in "ab":
        lines.park(task, ["slots"], lease=10 * SECOND)
    lines.park("c", ["slots"])
    lines.now += 10 * SECOND - 97_000
    lines.limiter["api"].try_acquire()
    lines.park("paced", ["api"])
    lines.now += 92_000
    (row,) = lines.claim(ahead=20_000)
    assert (row.id, row.starts) == ("paced", 8_000)
    assert lines.claim(ahead=20_000) == []
    assert lines.ask == 5_000
    lines.now += lines.ask
    assert [row.id for row in lines.claim(ahead=20_000)] == ["c"]


def test_a_revoked_or_expired_task_takes_no_slot(lines: Protocol) -> None:
    for task in "ab":
        lines.park(task, ["slots"], holder=task)
    lines.park("revoked", ["slots"])
    lines.park("expired", ["slots"], expires=lines.now + 1_000)
    lines.park("c", ["slots"])
    lines.withdraw("w", "revoked")
    lines.now += 1_000
    lines.claim(room=0, released=[("slots", "a")])
    rows = lines.claim(room=5)
    assert [(row.id, row.admitted) for row in rows] == [("expired", False), ("c", True)]
    assert lines.limiter["slots"].peek(0).remaining == 0
    lines.check()


def test_a_pause_of_slots_is_a_wait_that_is_known(lines: Protocol) -> None:
    lines.limiter["slots"].pause(30)
    parked = lines.park("a", ["slots"])
    assert (parked.outcome, parked.wait, parked.expected) == ("parked", 30 * SECOND, 30 * SECOND)
    assert lines.park("b", ["slots"], max_wait=SECOND).outcome == "late"


def test_each_key_has_slots_of_its_own(lines: Protocol) -> None:
    for task in "abc":
        lines.park(task, [("slots", "k")], holder=task)
    assert lines.park("d", [("slots", "other")]).outcome == "admitted"
    assert lines.claim(released=[("slots", "d")]) == []
    assert [row.id for row in lines.claim(released=[(("slots", "k"), "b")])] == ["c"]


def test_more_slots_are_in_force_at_once(lines: Protocol) -> None:
    for task in "abcd":
        lines.park(task, ["slots"])
    lines.limiter["slots"].define("3 at once")
    assert [row.id for row in lines.claim(room=5)] == ["c"]


# Several limits of one name.


def test_all_limits_of_a_name_have_to_allow(lines: Protocol) -> None:
    assert lines.park("a", ["github"], holder="a").outcome == "admitted"
    lines.park("b", ["github"])
    lines.park("c", ["github"])
    lines.now += 100_000
    assert lines.claim(room=5) == []  # the slot is in use
    (row,) = lines.claim(room=5, released=[("github", "a")])
    assert row.id == "b"
    holder = f"w {row.token} {row.id}"
    assert lines.claim(room=5, released=[("github", holder)]) == []  # the rate is
    lines.now += 100_000
    assert [row.id for row in lines.claim(room=5)] == ["c"]
    lines.check()


# A leaky-queue.


def test_the_line_is_the_queue_of_a_leaky_queue(lines: Protocol) -> None:
    assert lines.park("x", ["queue"]).outcome == "admitted"
    begin = lines.now
    # The first has not leaked yet, so there is room for two more.
    waits = [lines.park(task, ["queue"]) for task in "abc"]
    assert [parked.outcome for parked in waits] == ["parked", "parked", "full"]
    assert [parked.expected for parked in waits[:2]] == [100_000, 200_000]
    assert lines.park("a", ["queue"]).outcome == "parked"  # it is in it already
    assert lines.waiting() == ["a", "b"]
    assert lines.drain(0.15) == [(begin + 100_000, "a")]
    assert lines.park("d", ["queue"]).outcome == "parked"
    assert lines.park("e", ["queue"]).outcome == "full"
    assert [(at - begin, task) for at, task in lines.drain(1)] == [(200_000, "b"), (300_000, "d")]
    lines.check()


def test_a_full_queue_takes_nothing_from_other_limits(lines: Protocol) -> None:
    for task in "xab":
        assert lines.park(task, ["queue"]).outcome != "full"
    assert lines.park("d", ["api", "queue"]).outcome == "full"
    assert lines.park("e", ["api"]).outcome == "admitted"


# Fractions.


def test_two_halves_are_one_unit(lines: Protocol) -> None:
    lines.park("x", ["api"])
    for task in "abcd":
        lines.park(task, ["api"], cost=0.5)
    begin = lines.now
    # A burst of one unit has room for a half of it when half of the first has passed.
    assert [(at - begin, task) for at, task in lines.drain(0.5)] == [
        (50_000, "a"),
        (100_000, "b"),
        (150_000, "c"),
        (200_000, "d"),
    ]


def test_each_limit_takes_its_own_cost(lines: Protocol) -> None:
    lines.park("x", ["api", ("bulk", "k")], cost={"bulk": 10})
    lines.park("a", ["api", ("bulk", "k")], cost={"api": 0.25, "bulk": 0.125})
    assert lines.limiter["bulk", "k"].peek(0).remaining == 0
    assert [row.id for row in lines.claim(ahead=20_000)] == []
    lines.now += 25_000
    assert [row.id for row in lines.claim()] == ["a"]
    assert lines.limiter["bulk", "k"].peek(0).remaining == 9


# The gate.


def test_a_gate_books_slots_ahead_for_fractions(lines: Protocol) -> None:
    half = GateRequest(lines.limiter.require(["bulk"], 0.5), 30)
    (reply,) = lines.store.run(gate_call(lines.limiter.plans, [half], 20_000))
    # Ten units are free, which is twenty halves, and another half comes each 0.5 ms.
    assert reply == [1, 30, 20, 500, 500_000, 20_000]
    assert lines.limiter["bulk"].peek(0).reset_after == 0.015
    whole = GateRequest(lines.limiter.require(["bulk"], 1), 30)
    (reply,) = lines.store.run(gate_call(lines.limiter.plans, [whole], 20_000))
    assert reply == [1, 1, 0, 6_000, 0, 20_000]  # its own slot lies ahead: that and no more


def test_what_a_gate_takes_of_a_window_is_good_for_the_rest_of_it(lines: Protocol) -> None:
    lines.now += SECOND - lines.now % SECOND - 5_000
    want = GateRequest(lines.limiter.require(["window"], 1), 9)
    call = gate_call(lines.limiter.plans, [want], 20_000)
    assert lines.store.run(call) == [[1, 5, 5, 0, 200_000_000, 5_000]]
    # The next window has begun when these are due, and is good for all of the 20 ms.
    call = gate_call(lines.limiter.plans, [want], 20_000)
    assert lines.store.run(call) == [[1, 1, 0, 5_000, 0, 20_000]]
    assert lines.limiter["window"].peek(0).remaining == 0  # nothing more before that


@pytest.mark.parametrize("limits", [["slots"], ["api", "slots"], ["github"]])
def test_a_gate_takes_no_slots(lines: Protocol, limits: list[ItemLike]) -> None:
    assert lines.store.run(lines.gate_call([(limits, 1), (["mail"], 1)])) == [
        [0],
        [1, 1, 1, 0, 0, 20_000],
    ]
    assert lines.limiter["slots"].peek(0).remaining == 2
    assert lines.limiter["api"].peek(0).remaining == 1


def test_a_gate_lets_one_after_the_other_out_of_a_leaky_queue(lines: Protocol) -> None:
    want = GateRequest(lines.limiter.require(["queue"], 1), 9)
    call = gate_call(lines.limiter.plans, [want], 20_000)
    assert [reply[:4] for reply in lines.store.run(call)] == [[1, 1, 1, 0]]
    assert lines.store.run(call) == [[0]]
    lines.now += 85_000
    call = gate_call(lines.limiter.plans, [want], 20_000)
    assert lines.store.run(call) == [[1, 1, 0, 15_000, 0, 20_000]]


def test_a_gate_decides_for_several_tasks_each_on_its_own(lines: Protocol) -> None:
    lines.store.run(lines.gate_call([(["api"], 1), (["mail"], 1)]))
    lines.park("waits", ["mail"])
    replies = lines.store.run(
        lines.gate_call([(["api"], 1), (["mail"], 1), ([("bulk", "k")], 4), ([("bulk", "l")], 11)])
    )
    assert [reply[0] for reply in replies] == [0, 0, 1, -1]
    unknown = lines.store.run(lines.gate_call([(["nobody"], 1), (["bulk"], 1)]))
    assert unknown == [[-2, 1, str(lines.now).encode()]]
    assert not lines.client.exists("{throttle}:state:bulk")


def test_a_claim_that_was_not_started_gives_its_slots_back(lines: Protocol) -> None:
    lines.park("a", ["slots"])
    lines.park("b", ["slots"])
    lines.park("c", ["slots"])
    assert lines.claim() == []
    (claim,) = lines.claim(released=[("slots", "task a")])
    # Started: its slot is given back when it ends, whatever becomes of the claim.
    lines.claim(room=0, settled=[claim.token])
    assert lines.client.zcard("{throttle}:entries:slots") == 2
    lines.park("d", ["slots"])
    (claim,) = lines.claim(released=[("slots", f"w {claim.token} {claim.id}")])
    # Not started, as it was revoked or had expired on the way.
    lines.claim(room=0, settled=[-claim.token])
    assert lines.client.zcard("{throttle}:entries:slots") == 1
    assert lines.client.exists("{throttle}:claims:w") == 0
    lines.check()


DAMAGED_CLAIMS = [b"", b"no claim", b"\xc1", b"\x80", b"\x95\x01\x02\x03\x04\x05"]


@pytest.mark.parametrize("claim", DAMAGED_CLAIMS)
def test_a_damaged_claim_keeps_no_other_from_being_requeued(lines: Protocol, claim: bytes) -> None:
    for number in range(4):
        lines.park(str(number), ["bulk"], may_run=False)
    rows = lines.claim(room=4, lease=SECOND)
    stored = lines.keys.claims("w")
    lines.client.hset(stored, rows[0].token, claim)
    lines.client.hset(stored, rows[2].token, claim)
    assert lines.back("w", "own", rows[0].token, rows[1].token) == 0
    assert lines.waiting() == ["1"]
    lines.now += 2 * SECOND
    lines.claim("other", room=0)
    assert lines.dead == b"w"
    while (left := lines.back("w", "dead", most=1)) > 0:  # in the order of the server's hash
        assert lines.waiting() == ["1", "3"]
    assert left == -2
    assert lines.waiting() == ["1", "3"]
    # They are kept for a while, and no worker is told again to requeue them.
    assert {*map(int, lines.client.hkeys(stored))} == {rows[0].token, rows[2].token}
    assert lines.client.pttl(stored) > 0
    lines.claim("other", room=0)
    assert lines.dead == b""
    lines.client.delete(stored)
    lines.check()


@pytest.mark.parametrize("claim", DAMAGED_CLAIMS)
def test_a_damaged_claim_that_was_not_started_is_settled(lines: Protocol, claim: bytes) -> None:
    lines.park("a", ["bulk"], may_run=False)
    (row,) = lines.claim()
    lines.client.hset(lines.keys.claims("w"), row.token, claim)
    lines.claim(room=0, settled=[-row.token])
    assert not lines.client.exists(lines.keys.claims("w"), lines.keys.workers)


@pytest.mark.parametrize("packed", [b"\x01\xc1", b"\x01\x91\x01", b"\x09\x80"])
def test_damaged_records_keep_no_other_from_being_seen(lines: Protocol, packed: bytes) -> None:
    limiter, queue = lines.limiter, lines.keys.queue("q")
    for task in ("claimed", "kept"):
        lines.park(task, ["bulk"], may_run=False)
    claimed, _ = lines.claim(room=2)
    lines.client.hset(lines.keys.claims("w"), claimed.token, packed)
    for limit in ("api", "mail"):
        lines.park(limit, [limit], may_run=False)
    for line, found in lines.client.hgetall(queue.lines).items():
        if b"api" in found:
            lines.client.hset(queue.lines, line, packed)
    plans, names = (
        WithdrawPlans(lines.keys, None),
        [line.decode() for line in lines.client.hkeys(queue.lines)],
    )
    assert limiter.run_plan(plans.count_claims()) == 1
    assert list(limiter.run_plan(plans.lines("q")).values()) == [1]
    found = [limiter.explain(task).location for task in ("kept", "mail", "api")]
    assert found == ["claimed", "line", "unknown"]
    assert limiter["mail"].forecast().waiting == 1
    _, *overdue = lines.store.run(limiter.observer.call("list_overdue", queue, 0, 0))
    assert len(overdue) == 1
    drain = Claimant("drain", 30)
    call = plans.lines_call(drain, "q", names, first_token=1, parked_by=2**52, most=10)
    _, _, *withdrawn = lines.store.run(call)
    assert [task for _, _, task in withdrawn] == [b"mail"]
    lines.client.flushdb()


@pytest.mark.parametrize("packed", DAMAGED_CLAIMS)
def test_a_damaged_task_in_quarantine_keeps_no_other_there(lines: Protocol, packed: bytes) -> None:
    limiter, plans = lines.limiter, WithdrawPlans(lines.keys, None)
    for task in ("damaged", "withdrawn", "recalled"):
        lines.park(task, ["bulk"], may_run=False)
    for row in lines.claim(room=3):
        lines.store.run(quarantine_call(lines.keys, "w", row.token, "1 bulk"))
    lines.client.hset(lines.keys.quarantine, "damaged", packed)
    assert limiter.run_plan(plans.count_quarantined()) == {"q": 2}
    found = [limiter.explain(task).location for task in ("damaged", "withdrawn")]
    assert found == ["unknown", "quarantine"]
    lines.store.run(recall_call(lines.keys, ["damaged", "recalled"]))
    assert lines.waiting() == ["recalled"]
    call = plans.quarantined_call(Claimant("drain", 30), "q", "0", first_token=1)
    _, _, *withdrawn = lines.store.run(call)
    assert [task for _, _, task in withdrawn] == [b"withdrawn"]
    assert limiter.run_plan(discard(lines.keys, "q")) == 1
    assert lines.client.hkeys(lines.keys.quarantine) == [b"damaged"]
    lines.client.flushdb()


@pytest.mark.parametrize("row", [b"", b"\xc1", b"\x80", b"\x91\x01"])
def test_a_row_that_cannot_be_read_goes_where_others_go(lines: Protocol, row: bytes) -> None:
    """It is handed out with an empty message, and no unit."""
    for task in ("damaged", "other"):
        lines.park(task, ["bulk"], may_run=False)
    lines.client.hset(lines.keys.queue("q").messages, "damaged", row)
    damaged, other = lines.claim(room=2)
    assert (damaged.id, damaged.message, damaged.admitted) == ("damaged", b"", False)
    assert other.admitted
    lines.back("w", "own", damaged.token, other.token)
    lines.claim("dead", room=2)
    lines.now += 60 * SECOND
    lines.back("dead", "dead")
    assert lines.waiting() == ["damaged", "other"]
    lines.check()
    damaged, _ = lines.claim(room=2)
    lines.set_aside("w", damaged.token)
    lines.recall("damaged")
    assert lines.withdraw("w", "damaged") == []
    assert [row.id for row in lines.claim()] == ["damaged"]
