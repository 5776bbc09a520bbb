"""The algorithms in Python: figures calculated by hand, and the constants shared with Lua."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from celery_throttle.algorithms.definition import STATE_CLASSES
from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.meters import BusyPeriod, LeakyQueue, Meter
from celery_throttle.algorithms.slots import LEASE_US, SlotLease, Slots
from celery_throttle.algorithms.state import State
from celery_throttle.algorithms.windows import FixedWindow, LogEntry, SlidingLog, SlidingWindow
from celery_throttle.errors import CostError, LimitError, UnknownLimitError
from celery_throttle.limits import duration
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.grammar import ADAPTIVE, CLAUSES, CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.store import definitions
from celery_throttle.store.script import library

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_700_000_000 * SECOND
BUSY = BusyPeriod(START)

API = LimitRef("api", None)
MAIL = LimitRef("mail", None)
GOLD = LimitRef("mail", "gold")

METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")

#: What drains; the Decision of a leaky-queue tells a delay besides.
meters = pytest.mark.parametrize("algorithm", METERS)
meters_without_delay = pytest.mark.parametrize("algorithm", METERS[:3])


def one(text: str, algorithm: str) -> MemoryLimits:
    return MemoryLimits({"api": f"{text} using {algorithm}"})


def allowed(
    burst: int, remaining: int, *, reset: float, granted: float, delay: float = 0.0
) -> Decision:
    return Decision(
        allowed=True,
        burst=burst,
        remaining=remaining,
        retry_after=0.0,
        reset_after=reset,
        limited_by=None,
        granted=granted,
        delay=delay,
    )


def refused(burst: int, remaining: int, *, wait: float, reset: float, by: str) -> Decision:
    return Decision(
        allowed=False,
        burst=burst,
        remaining=remaining,
        retry_after=wait,
        reset_after=reset,
        limited_by=by,
    )


def test_lua_and_python_share_their_constants() -> None:
    constants = library().constants
    for name, value in (
        ("FARTHEST", MAX_BOOKING_US),
        ("MILLION", MILLION),
        ("MAX_EXACT", duration.MAX_EXACT),
    ):
        assert constants[name] == str(value)
    names = [name.upper().replace("-", "_") for name in definitions.TAGS]
    in_lua = {name: int(constants[name.replace("CONCURRENCY", "SLOTS")]) for name in names}
    in_python = {name.upper().replace("-", "_"): tag for name, tag in definitions.TAGS.items()}
    assert in_lua == in_python
    assert [name for name, tag in definitions.TAGS.items() if tag <= 4] == list(METERS)
    assert set(STATE_CLASSES) == set(definitions.TAGS) == {*CLAUSES, CONCURRENCY}


@meters
def test_the_example_of_decision(algorithm: str) -> None:
    local = one("10/s burst 5", algorithm)
    assert local.acquire({API: 4}, START) == allowed(5, 1, reset=0.4, granted=4)
    assert local.acquire({API: 3}, START) == refused(5, 1, wait=0.2, reset=0.4, by="api")
    assert local.acquire({API: 3}, START + 199_999) == refused(
        5, 2, wait=0.000001, reset=0.200001, by="api"
    )
    assert local.acquire({API: 3}, START + 200_000).allowed


def test_what_comes_later_in_a_queue_is_told_its_delay() -> None:
    local = one("10/s burst 3", "leaky-queue")
    taken = [local.acquire({API: 1}, START) for _ in range(4)]
    assert [decision.delay for decision in taken] == [0.0, 0.1, 0.2, 0.0]
    assert taken[3] == refused(3, 0, wait=0.1, reset=0.3, by="api")
    assert local.peek({API: 1}, START + 100_000) == allowed(3, 1, reset=0.2, granted=0, delay=0.2)


@meters
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


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        ("gcra", Meter),
        ("token-bucket", Meter),
        ("leaky-bucket", Meter),
        ("leaky-queue", LeakyQueue),
    ],
)
def test_what_drains(algorithm: str, kind: type[Meter]) -> None:
    limit = Limit.parse(f"3/s burst 3 using {algorithm}")
    state = kind(7, START, 1_000_000, 3, BUSY, 2_000_000, algorithm)
    taken = taken_once(limit, 2, START)
    assert taken == state
    assert type(taken) is type(state)
    assert [state.used(START + later) for later in (0, 500_000, HOUR)] == [2_000_000, 500_000, 0]
    assert state.in_use(START + 500_000) == 500_000
    assert state.mark() == (666_666, START)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("3/s using fixed-window", FixedWindow(7, START, START + SECOND, 2 * MILLION, START + 3)),
        (
            "3/s using fixed-window from first-request",
            FixedWindow(7, START + 3, START + 3 + SECOND, 2 * MILLION, START + 3),
        ),
        (
            "3/s using sliding-window",
            SlidingWindow(7, START, SECOND, (2 * MILLION, 0), START + 3),
        ),
        (
            "3/s using sliding-window parts 4",
            SlidingWindow(7, START, SECOND // 4, (2 * MILLION, 0, 0, 0, 0), START + 3),
        ),
        (
            "3/s using sliding-window parts 4 oldest dropped",
            SlidingWindow(7, START, SECOND // 4, (2 * MILLION, 0, 0, 0), START + 3),
        ),
        (
            "3/s using sliding-log",
            SlidingLog(7, SECOND, (LogEntry(START + 3, 1, 2 * MILLION),), 1, START + 3, START + 3),
        ),
        ("3 at once", Slots(7, (SlotLease(START + 3 + LEASE_US, 1),), 1, LEASE_US)),
    ],
)
def test_what_counts(text: str, state: State) -> None:
    limit = Limit.parse(text)
    assert taken_once(limit, 2, START + 3) == state
    assert state.in_use(START + 4) == (MILLION if limit.algorithm == CONCURRENCY else 2 * MILLION)
    assert state.in_use(START + HOUR) == 0


def taken_once(limit: Limit, cost: int, now: int) -> State:
    kind = STATE_CLASSES[limit.algorithm]
    return kind.empty(limit, 7).take(limit, cost * MILLION, now, now)


@pytest.mark.parametrize("algorithm", STATE_CLASSES)
def test_a_state_is_a_value(algorithm: str) -> None:
    others = {CONCURRENCY: "3 at once", ADAPTIVE: "adaptive 1..3/s"}
    text = others.get(algorithm, f"3/s using {algorithm}")
    state = taken_once(Limit.parse(text), 1, START)
    assert state == taken_once(Limit.parse(text), 1, START)
    attribute = "since"
    with pytest.raises(FrozenInstanceError):
        setattr(state, attribute, 1)


@meters
def test_a_slot_booked_ahead_counts_from_its_start(algorithm: str) -> None:
    limit = Limit.parse(f"100/s burst 2 using {algorithm}")
    full = taken_once(limit, 2, START)
    assert full.wait(limit, MILLION, START) == 10_000
    booked = full.take(limit, MILLION, START, START + 10_000)
    assert booked.in_use(START) == 3 * MILLION  # one unit above the capacity
    assert booked.remaining_and_reset(limit, START) == (0, 30_000)
    assert booked.wait(limit, 2 * MILLION, START) == 30_000


@meters_without_delay
def test_several_limits_all_or_nothing(algorithm: str) -> None:
    local = MemoryLimits(
        {"api": f"10/s burst 5 using {algorithm}", "mail": f"1/s using {algorithm}"}
    )
    both = {API: 1, MAIL: 1}
    assert local.acquire(both, START) == allowed(1, 0, reset=1.0, granted=1)
    assert local.acquire(both, START) == refused(1, 0, wait=1.0, reset=1.0, by="mail")
    assert local.peek({API: 0}, START).remaining == 4
    assert local.acquire({API: 4}, START)
    assert local.acquire(both, START + SECOND - 1) == refused(
        1, 0, wait=0.000001, reset=0.000001, by="mail"
    )
    assert local.acquire(both, START + SECOND)


def test_each_limit_may_have_a_cost_of_its_own() -> None:
    local = MemoryLimits({"api": "10/s burst 5", "mail": "1/s burst 2"})
    assert local.acquire({API: 4, MAIL: 0.5}, START) == allowed(5, 1, reset=0.5, granted=4)
    assert local.acquire({API: 1, MAIL: 1.75}, START) == refused(
        2, 1, wait=0.25, reset=0.5, by="mail"
    )
    assert local.peek({MAIL: 1.5}, START).allowed


def test_all_limits_of_a_name_have_to_allow() -> None:
    local = MemoryLimits({"api": ["10/s burst 5", "6/m using fixed-window", "2 at once"]})
    begin = START - START % (60 * SECOND)
    assert local.acquire({API: 3}, begin) == allowed(2, 1, reset=60.0, granted=3)
    assert local.acquire({API: 3}, begin) == refused(5, 2, wait=0.1, reset=60.0, by="api")
    assert local.acquire({API: 3}, begin + SECOND)
    assert local.acquire({API: 1}, begin + 2 * SECOND) == refused(
        6, 0, wait=58.0, reset=58.0, by="api"
    )


@pytest.mark.parametrize("ref", [API, LimitRef("api", "key")])
def test_each_goes_on_with_the_units_of_the_one_in_its_place_or_with_the_most(
    ref: LimitRef,
) -> None:
    local = MemoryLimits({"api": ["9/h using fixed-window", "9/h burst 9"]})
    begin = START - START % HOUR
    local.acquire({ref: 4}, begin)
    half = begin + HOUR // 2  # the meter has drained by four, the window has not
    local.define(API, ["9/h burst 9", "8/h using fixed-window", "7/h using sliding-log"], half)
    assert local.peek({ref: 0}, half) == allowed(7, 3, reset=3600.0, granted=0)
    local.define(API, "5/h burst 5", half)
    assert local.peek({ref: 0}, half).remaining == 1


def test_a_slot_is_held_from_when_its_holder_begins() -> None:
    local = MemoryLimits({"api": ["10/s burst 5 using leaky-queue", "3 at once"]})
    local.acquire({API: 1}, START)
    decision = local.acquire({API: 1}, START)
    assert (decision.delay, decision.reset_after) == (0.1, 30.1)


def test_a_refusal_tells_of_the_limit_that_binds() -> None:
    local = MemoryLimits({"api": "1000/s burst 10", "mail": "1/s burst 20"})
    local.acquire({API: 7}, START)
    local.acquire({MAIL: 15}, START)
    assert local.acquire({API: 10, MAIL: 10}, START) == refused(
        20, 5, wait=5.0, reset=15.0, by="mail"
    )
    assert local.peek({API: 0, MAIL: 0}, START).burst == 10


def test_a_key_may_have_a_limit_of_its_own() -> None:
    local = MemoryLimits({"mail": "1/s"})
    local.define(GOLD, "1/s burst 9", START)
    assert local.acquire({GOLD: 9}, START).burst == 9
    assert local.acquire({LimitRef("mail", "plain"): 1}, START).burst == 1
    local.reset(GOLD)
    assert local.peek({GOLD: 0}, START).remaining == 9


@pytest.mark.parametrize("ref", [MAIL, GOLD])
@meters
@pytest.mark.parametrize("written_by", METERS)
def test_another_rate_keeps_units_in_use_and_pays_them_off_itself(
    ref: LimitRef, algorithm: str, written_by: str
) -> None:
    local = MemoryLimits({"mail": f"1/h burst 2 using {written_by}"})
    local.acquire({ref: 2}, START)
    half = START + HOUR // 2
    local.define(MAIL, f"100/s burst 2 using {algorithm}", half)
    assert local.peek({ref: 1}, half) == refused(2, 0, wait=0.005, reset=0.015, by="mail")
    assert local.acquire({ref: 1}, half + 5_000)
    local.define(MAIL, f"7/day burst 2 using {algorithm}", half + 5_000)
    assert local.peek({ref: 0}, half + 5_000).reset_after == pytest.approx(2 * 24 * 3600 / 7)


def test_if_the_rate_changes_twice_nothing_is_paid_off_until_the_last_change() -> None:
    local = MemoryLimits({"mail": "1/h burst 4"})
    local.acquire({GOLD: 4}, START)
    local.define(MAIL, "2/h burst 4", START + HOUR)
    local.define(MAIL, "4/h burst 4", START + 2 * HOUR)
    assert local.peek({GOLD: 0}, START + 2 * HOUR).reset_after == 3600
    assert local.peek({GOLD: 0}, START + 2 * HOUR + HOUR // 4).reset_after == 3 * 3600 / 4


def test_a_rate_that_comes_back_does_not_count_for_the_time_it_was_away() -> None:
    local = MemoryLimits({"mail": "100/s burst 100"})
    local.acquire({GOLD: 100}, START)
    local.define(MAIL, "1/h burst 100", START)
    local.define(MAIL, "100/s burst 100", START + 10 * SECOND)
    assert local.peek({GOLD: 0}, START + 10 * SECOND).remaining == 0


@meters
@pytest.mark.parametrize("written_by", METERS)
def test_what_changed_more_than_twice_is_not_paid_off_by_a_rate_of_the_past(
    algorithm: str, written_by: str
) -> None:
    local = MemoryLimits({"mail": f"10/s burst 5 using {written_by}"})
    local.acquire({GOLD: 5}, START)
    local.define(MAIL, "5/h burst 5", START + 1)
    local.define(MAIL, "4/h burst 4", START + 10 * SECOND)
    local.define(MAIL, f"10/s burst 5 using {algorithm}", START + 10 * SECOND + 1)
    assert local.peek({GOLD: 0}, START + 10 * SECOND + 1).remaining == 0


@pytest.mark.parametrize("ref", [MAIL, GOLD])
@meters
def test_what_lies_beyond_any_booking_is_forgiven(ref: LimitRef, algorithm: str) -> None:
    local = MemoryLimits({"mail": f"100/s burst 100 using {algorithm}"})
    local.acquire({ref: 100}, START)
    local.define(MAIL, f"100/s using {algorithm}", START)
    assert local.peek({ref: 0}, START).reset_after == 0.01  # one unit, not a hundred
    assert local.acquire({ref: 1}, START + 9_999).retry_after == 0.000001
    assert local.acquire({ref: 1}, START + 10_000)
    near = START + 10_000 - MAX_BOOKING_US  # the clock steps back, as far as a slot may be booked
    assert local.peek({ref: 1}, near).retry_after == 0.03
    before = near - 1
    assert local.peek({ref: 1}, before).retry_after == 0.01
    assert local.peek({ref: 1}, near).retry_after == 0.009999  # it was forgiven for good
    assert local.acquire({ref: 1}, before + 10_000)


@meters
def test_wrong_input_takes_nothing(algorithm: str) -> None:
    local = one("1/s burst 2", algorithm)
    for cost in (0, 3, -1, True, 2.000001, float("nan"), "1"):
        with pytest.raises(CostError, match="allowed"):
            local.acquire({API: cost}, START)  # type: ignore[dict-item]  # the point of the test
    with pytest.raises(UnknownLimitError, match=r"'mail'.*'api'"):
        local.acquire({API: 1, MAIL: 1}, START)
    with pytest.raises(LimitError, match="allowed"):
        local.acquire({}, START)
    assert local.peek({API: 0}, START).remaining == 2
