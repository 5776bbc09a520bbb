"""Outage mode: the shares of workers, and when refused tasks may try again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.algorithms.share import make_share
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import MAX_PERIOD_US, Rate
from celery_throttle.limits.requirement import Requirement, make_requirement
from celery_throttle.worker.health.outage import Fallback

SECOND = 1_000_000
API = LimitRef("api", None)


def alone(
    limits: dict[LimitRef, Sequence[str | Limit]], workers: int = 1, held: int = 0
) -> Fallback:
    read = {ref: tuple(map(Limit.of, own)) for ref, own in limits.items()}
    return Fallback(read, workers, lambda _: held)


def requirement(*refs: LimitRef, cost: float = 1) -> Requirement:
    return make_requirement(refs, cost)


def test_a_share_is_the_rate_divided_and_begins_used_up() -> None:
    worker = alone({API: ["100/s burst 8"]}, workers=4)
    assert worker.wait(requirement(API), 0, waited=False) == 40_000  # 25/s
    assert worker.wait(requirement(API), 40_000, waited=True) == 0
    assert worker.wait(requirement(API), 40_000, waited=True) == 40_000
    # Long unused, it holds its part of the burst, which is 2.
    assert [worker.wait(requirement(API), SECOND, waited=True) for _ in range(3)] == [0, 0, 40_000]


def test_each_that_waits_has_a_time_of_its_own_and_nobody_overtakes() -> None:
    worker = alone({API: ["10/s"]})
    waits = [worker.wait(requirement(API), 0, waited=False) for _ in range(5)]
    assert waits == [100_000, 200_000, 300_000, 400_000, 500_000]
    assert worker.wait(requirement(API), 100_000, waited=False) == 500_000
    assert worker.wait(requirement(API), 100_000, waited=True) == 0


def test_a_cost_above_the_share_of_the_burst_still_passes_in_its_time() -> None:
    worker = alone({API: ["10/s burst 10"]}, workers=10)
    assert worker.wait(requirement(API, cost=5), 0, waited=False) == 5 * SECOND
    assert worker.wait(requirement(API, cost=5), 5 * SECOND, waited=True) == 0
    assert worker.wait(requirement(API, cost=0.5), 5 * SECOND, waited=True) == SECOND // 2


def test_windows_are_spread_evenly() -> None:
    worker = alone({API: ["600/m using fixed-window"]}, workers=2)
    assert worker.wait(requirement(API), 0, waited=False) == 200_000


def test_a_limit_says_what_holds_meanwhile() -> None:
    closed = replace(Limit.parse("1/s"), outage="closed")
    opened = replace(Limit.parse("1/s"), outage="open")
    shut, free = LimitRef("shut", None), LimitRef("free", None)
    worker = alone({API: ["1/s"], shut: [closed], free: [opened], LimitRef("both", None): [opened]})
    assert worker.wait(requirement(shut), 0, waited=False) is None
    assert worker.wait(requirement(API, shut), 0, waited=False) is None
    assert [worker.wait(requirement(free), 0, waited=False) for _ in range(9)] == [0] * 9
    assert worker.wait(requirement(API, free), 0, waited=False) == SECOND


def test_closed_slots_are_closed() -> None:
    closed = replace(Limit.parse("3 at once"), outage="closed")
    worker = alone({API: [closed], LimitRef("both", None): ["1/s", closed]})
    assert worker.wait(requirement(API), 0, waited=False) is None
    assert worker.wait(requirement(LimitRef("both", None)), 0, waited=False) is None


def test_a_task_waits_for_the_server_if_its_limit_is_newer_than_the_last_heartbeat() -> None:
    worker = alone({API: ["1/s"]})
    assert worker.wait(requirement(API, LimitRef("new", "k")), SECOND, waited=False) is None


def test_keys_have_their_own() -> None:
    keyed, gold = LimitRef("api", "a"), LimitRef("api", "gold")
    worker = alone({API: ["1/s"], gold: ["10/s"]})
    assert worker.wait(requirement(keyed), 0, waited=False) == SECOND
    assert worker.wait(requirement(LimitRef("api", "b")), 0, waited=False) == SECOND
    assert worker.wait(requirement(gold), 0, waited=False) == SECOND // 10


@pytest.mark.parametrize(
    ("workers", "held", "wait"), [(1, 9, 0), (1, 10, 100_000), (5, 2, 100_000), (11, 0, None)]
)
def test_slots_are_divided_rounded_down(workers: int, held: int, wait: int | None) -> None:
    worker = alone({API: ["10 at once"]}, workers, held)
    assert worker.wait(requirement(API), 0, waited=False) == wait


@given(
    count=st.integers(1, 1000),
    period=st.sampled_from([1000, SECOND, 60 * SECOND, 86_400 * SECOND]),
    burst=st.integers(1, 50),
    workers=st.integers(1, 20),
    cost=st.integers(1, 10),
)
def test_all_shares_together_are_no_more_than_the_limit(
    count: int, period: int, burst: int, workers: int, cost: int
) -> None:
    part = make_share(Limit(Rate(count, period), burst), workers, cost * MILLION)
    assert part is not None
    assert isinstance(part.rate, Rate)
    assert workers * Fraction(part.rate.count, part.rate.period_us) <= Fraction(count, period)
    assert part.burst == max(burst // workers, cost)


def test_a_share_too_small_to_be_counted_is_none() -> None:
    year = Limit(Rate(1, MAX_PERIOD_US))
    assert make_share(year, 2) is None
    assert alone({API: [year]}, workers=2).wait(requirement(API), 0, waited=False) is None


@settings(deadline=None)  # an example takes as long as the machine is slow
@given(
    limit=st.sampled_from(
        ["100/s", "100/s burst 7", "50/s burst 20 using token-bucket", "90/s using sliding-log"]
    ),
    workers=st.integers(1, 4),
    tries=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30_000)), min_size=50, max_size=200),
)
def test_together_they_start_no_more_than_the_bound(
    limit: str, workers: int, tries: list[tuple[int, int]]
) -> None:
    fleet = [alone({API: [limit]}, workers) for _ in range(workers)]
    starts, now = [], 0
    for worker, step in tries:
        now += step
        if fleet[worker % workers].wait(requirement(API), now, waited=True) == 0:
            starts.append(now)
    read = Limit.parse(limit)
    assert isinstance(read.rate, Rate)
    burst = 0 if "log" in limit else read.burst
    most = workers * max(burst // workers, 1)
    for first, at in enumerate(starts):
        for count, end in enumerate(starts[first:], start=1):
            emitted = ceil(Fraction(read.rate.count * (end - at), read.rate.period_us))
            assert count <= emitted + most


def test_hostile_keys_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_throttle.worker.tuning.OUTAGE_SHARE_COUNT", 10)
    worker = alone({API: ["1/s"]})
    for number in range(25):
        keys = LimitRef("api", f"{number} a"), LimitRef("api", f"{number} b")
        assert worker.wait(requirement(*keys), 0, waited=False) == SECOND
    assert len(worker._shares) <= 11


def test_an_adaptive_limit_is_shared_by_its_lower_bound() -> None:
    assert make_share(Limit.parse("adaptive 10..100/s burst 8"), 2) == Limit.parse(
        "1/200ms burst 4"
    )


@pytest.mark.parametrize("held", [0, 1])
def test_adaptive_slots_are_shared_by_their_lowest_number(held: int) -> None:
    limits = {API: (Limit.parse("adaptive 2..50 at once"),)}
    worker = Fallback(limits, 2, lambda _: held)
    assert (worker.wait(requirement(API), 0, waited=False) == 0) == (held == 0)


def test_before_it_begins_it_takes_nothing_from_limits_that_count() -> None:
    limits = {ref: (Limit.of(text),) for ref, text in GRACE.items()}
    worker = Fallback(limits, 1, lambda _: 0, begins=30 * SECOND)
    waits = [worker.wait(requirement(API), SECOND, waited=False) for _ in range(3)]
    assert waits == [29 * SECOND, 29 * SECOND + 100, 29 * SECOND + 200]
    assert worker.wait(requirement(SLOTS), SECOND, waited=False) == 29 * SECOND
    assert worker.wait(requirement(OPEN), SECOND, waited=False) == 0
    assert worker.wait(requirement(CLOSED), SECOND, waited=False) is None
    assert worker.wait(requirement(OPEN, CLOSED), SECOND, waited=False) is None
    assert worker.wait(requirement(OPEN, SLOTS), SECOND, waited=True) == 29 * SECOND + 100
    # Then it begins used up.
    assert worker.wait(requirement(API), 30 * SECOND, waited=True) == 100_200
    assert worker.wait(requirement(SLOTS), 30 * SECOND, waited=True) == 0
    assert worker.wait(requirement(API), 31 * SECOND, waited=True) == 0


OPEN, CLOSED, SLOTS = LimitRef("open", None), LimitRef("closed", None), LimitRef("slots", None)
GRACE = {
    API: "10/s",
    OPEN: "10/s outage open",
    CLOSED: "10/s outage closed",
    SLOTS: "2 at once",
}


def test_what_is_paused_begins_after_the_pause_or_not_before_the_server_is_back() -> None:
    limits = {ref: (Limit.of(text),) for ref, text in GRACE.items()}
    pauses = {"api": 5.0, "slots": inf, "open": inf}
    worker = Fallback(limits, 1, lambda _: 0, pauses=pauses)
    assert worker.wait(requirement(API), SECOND, waited=False) == 4 * SECOND
    assert worker.wait(requirement(LimitRef("api", "key")), SECOND, waited=False) == 4 * SECOND
    assert worker.wait(requirement(API), 5 * SECOND, waited=True) == 100_000
    assert worker.wait(requirement(SLOTS), SECOND, waited=False) is None
    assert worker.wait(requirement(OPEN), SECOND, waited=False) == 0


def test_hostile_keys_that_wait_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_throttle.worker.tuning.OUTAGE_SHARE_COUNT", 10)
    worker = alone({SLOTS: ["2 at once"]}, held=2)
    for number in range(25):
        key = LimitRef("slots", str(number))
        assert worker.wait(requirement(key), 0, waited=False)
    assert len(worker._last_try) <= 10
