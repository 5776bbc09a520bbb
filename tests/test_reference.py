"""The algorithms in pure Python: figures worked out by hand, and the constants they share."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from importlib.resources import files

import pytest

from celery_throttle import limits, reference
from celery_throttle.decision import Decision
from celery_throttle.errors import CostError, LimitError, UnknownLimitError
from celery_throttle.limits import Limit
from celery_throttle.reference import FARTHEST, Definition, Gcra, Local, TokenBucket
from celery_throttle.scope import LimitRef

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_700_000_000 * SECOND

API = LimitRef("api", None)
MAIL = LimitRef("mail", None)
GOLD = LimitRef("mail", "gold")

algorithms = pytest.mark.parametrize("algorithm", limits.ALGORITHMS)


def one(text: str, algorithm: str) -> Local:
    return Local({"api": f"{text} using {algorithm}"})


def allowed(burst: int, remaining: int, *, reset: float) -> Decision:
    return Decision(
        allowed=True,
        limit=burst,
        remaining=remaining,
        retry_after=0.0,
        reset_after=reset,
        bound_by=None,
    )


def refused(burst: int, remaining: int, *, wait: float, reset: float, by: str) -> Decision:
    return Decision(
        allowed=False,
        limit=burst,
        remaining=remaining,
        retry_after=wait,
        reset_after=reset,
        bound_by=by,
    )


def test_lua_and_python_share_their_constants() -> None:
    lua = (files("celery_throttle") / "lua" / "algorithms.lua").read_text(encoding="utf-8")
    assert re.findall(r"^local FARTHEST = (\d+)$", lua, re.MULTILINE) == [str(FARTHEST)]
    in_lua = re.findall(r"^algorithms\['([\w-]+)'\]", lua, re.MULTILINE)
    assert sorted(in_lua) == sorted(reference.ALGORITHMS) == sorted(limits.ALGORITHMS)


@algorithms
def test_the_example_of_decision(algorithm: str) -> None:
    local = one("10/s burst 5", algorithm)
    assert local.acquire({API: 4}, START) == allowed(5, 1, reset=0.4)
    assert local.acquire({API: 3}, START) == refused(5, 1, wait=0.2, reset=0.4, by="api")
    assert local.acquire({API: 3}, START + 199_999) == refused(
        5, 2, wait=0.000001, reset=0.200001, by="api"
    )
    assert local.acquire({API: 3}, START + 200_000).allowed


@algorithms
def test_an_interval_of_no_whole_microseconds_is_never_rounded(algorithm: str) -> None:
    local = one("3/s burst 3", algorithm)
    assert local.acquire({API: 3}, START).reset_after == 1.0
    # A third of a second is 333,333 and a third: 333,333 would be too early.
    assert local.peek({API: 1}, START).retry_after == 0.333334
    assert not local.acquire({API: 1}, START + 333_333)
    assert local.acquire({API: 1}, START + 333_334)
    assert local.acquire({API: 2}, START + SECOND)
    day = START + 24 * HOUR
    taken = sum(bool(local.acquire({API: 1}, day + step * 111_111)) for step in range(9 * 100 + 1))
    # A hundred seconds less 0.1 ms: the full limit, and one unit for each third that is over.
    assert taken == 3 + 299


def test_what_the_states_hold() -> None:
    gcra = Definition(Limit.parse("3/s burst 3"), 7, 7)
    assert reference.take(gcra, 0, 2, START) == Gcra(START + 666_666, 2, 1_000_000, 3, 7)
    bucket = Definition(Limit.parse("3/s burst 3 using token-bucket"), 7, 7)
    assert reference.take(bucket, 0, 2, START) == TokenBucket(1_000_000, START, 3, 1_000_000, 3, 7)
    for definition in (gcra, bucket):
        state = reference.take(definition, 0, 2, START)
        assert reference.used(definition, state, START) == 2_000_000
        assert reference.used(definition, state, START + 500_000) == 500_000
        assert reference.used(definition, state, START + HOUR) == 0
        with pytest.raises(FrozenInstanceError):
            state.p = 1  # type: ignore[misc]  # the point of the test


@algorithms
def test_a_slot_booked_ahead_counts_from_its_start(algorithm: str) -> None:
    limit = Limit.parse(f"100/s burst 2 using {algorithm}")
    definition = Definition(limit, START, START)
    full = reference.used(definition, reference.take(definition, 0, 2, START), START)
    assert reference.wait(limit, full, 1) == 10_000
    booked = reference.take(definition, full, 1, START, START + 10_000)
    in_use = reference.used(definition, booked, START)
    assert in_use == 30_000  # one unit above the capacity
    assert reference.left(limit, in_use) == (0, 30_000)
    assert reference.wait(limit, in_use, 2) == 30_000
    assert reference.wait(limit, in_use, 3) is None


@algorithms
def test_several_limits_all_or_nothing(algorithm: str) -> None:
    local = Local({"api": f"10/s burst 5 using {algorithm}", "mail": f"1/s using {algorithm}"})
    both = {API: 1, MAIL: 1}
    assert local.acquire(both, START) == allowed(1, 0, reset=1.0)
    assert local.acquire(both, START) == refused(1, 0, wait=1.0, reset=1.0, by="mail")
    assert local.peek({API: 0}, START).remaining == 4
    assert local.acquire({API: 4}, START)
    assert local.acquire(both, START + SECOND - 1) == refused(
        1, 0, wait=0.000001, reset=0.000001, by="mail"
    )
    assert local.acquire(both, START + SECOND)


def test_a_refusal_tells_of_the_limit_that_binds() -> None:
    local = Local({"api": "1000/s burst 10", "mail": "1/s burst 20"})
    local.acquire({API: 7}, START)
    local.acquire({MAIL: 15}, START)
    assert local.acquire({API: 10, MAIL: 10}, START) == refused(
        20, 5, wait=5.0, reset=15.0, by="mail"
    )
    assert local.peek({API: 0, MAIL: 0}, START).limit == 10


def test_a_key_may_have_a_limit_of_its_own() -> None:
    local = Local({"mail": "1/s"})
    local.define(GOLD, "1/s burst 9", START)
    assert local.acquire({GOLD: 9}, START).limit == 9
    assert local.acquire({LimitRef("mail", "plain"): 1}, START).limit == 1
    local.reset(GOLD)
    assert local.peek({GOLD: 0}, START).remaining == 9


@pytest.mark.parametrize("ref", [MAIL, GOLD])
@algorithms
@pytest.mark.parametrize("written_by", limits.ALGORITHMS)
def test_another_rate_keeps_units_in_use_and_pays_them_off_itself(
    ref: LimitRef, algorithm: str, written_by: str
) -> None:
    local = Local({"mail": f"1/h burst 2 using {written_by}"})
    local.acquire({ref: 2}, START)
    half = START + HOUR // 2
    local.define(MAIL, f"100/s burst 2 using {algorithm}", half)
    assert local.peek({ref: 1}, half) == refused(2, 0, wait=0.005, reset=0.015, by="mail")
    assert local.acquire({ref: 1}, half + 5_000)
    local.define(MAIL, f"7/day burst 2 using {algorithm}", half + 5_000)
    assert local.peek({ref: 0}, half + 5_000).reset_after == pytest.approx(2 * 24 * 3600 / 7)


def test_between_two_changes_of_the_rate_nothing_is_paid_off() -> None:
    local = Local({"mail": "1/h burst 4"})
    local.acquire({GOLD: 4}, START)
    local.define(MAIL, "2/h burst 4", START + HOUR)  # one is paid off
    local.define(MAIL, "4/h burst 4", START + 2 * HOUR)
    assert local.peek({GOLD: 0}, START + 2 * HOUR).reset_after == 3 * 3600 / 4
    assert local.peek({GOLD: 0}, START + 2 * HOUR + HOUR // 4).reset_after == 2 * 3600 / 4


def test_a_rate_that_comes_back_does_not_count_for_the_time_it_was_away() -> None:
    local = Local({"mail": "100/s burst 100"})
    local.acquire({GOLD: 100}, START)
    local.define(MAIL, "1/h burst 100", START)
    local.define(MAIL, "100/s burst 100", START + 10 * SECOND)
    assert local.peek({GOLD: 0}, START + 10 * SECOND).remaining == 0


@pytest.mark.parametrize("ref", [MAIL, GOLD])
@algorithms
def test_what_lies_beyond_any_booking_is_forgiven(ref: LimitRef, algorithm: str) -> None:
    local = Local({"mail": f"100/s burst 100 using {algorithm}"})
    local.acquire({ref: 100}, START)
    local.define(MAIL, f"100/s using {algorithm}", START)
    assert local.peek({ref: 0}, START).reset_after == 0.03  # one unit and FARTHEST, not a second
    assert local.acquire({ref: 1}, START + 29_999).retry_after == 0.000001
    assert local.acquire({ref: 1}, START + 30_000)
    before = START + 30_000 - HOUR  # the clock steps back
    assert local.peek({ref: 1}, before).retry_after == 0.03
    assert local.acquire({ref: 1}, before + 30_000)


@algorithms
def test_wrong_input_takes_nothing(algorithm: str) -> None:
    local = one("1/s burst 2", algorithm)
    for cost in (0, 3, -1, True, 1.0, "1"):
        with pytest.raises(CostError, match="allowed"):
            local.acquire({API: cost}, START)  # type: ignore[dict-item]  # the point of the test
    with pytest.raises(UnknownLimitError, match=r"'mail'.*'api'"):
        local.acquire({API: 1, MAIL: 1}, START)
    with pytest.raises(LimitError, match="allowed"):
        local.acquire({}, START)
    assert local.peek({API: 0}, START).remaining == 2
