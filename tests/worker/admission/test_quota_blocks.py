"""Units taken ahead: never used before their slot, never after 20 ms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_throttle.worker.admission.quota import Block
from celery_throttle.worker.demand import Demand
from celery_throttle.worker.tuning import BOOKING_HORIZON_SECONDS as HORIZON


@given(
    starts=st.integers(1, 200),
    at_once=st.integers(0, 200),
    later=st.floats(0, HORIZON),
    interval=st.floats(1e-6, HORIZON),
    lifetime=st.just(HORIZON) | st.floats(0, HORIZON),
    gaps=st.lists(st.floats(0, HORIZON / 4), max_size=300),
)
def test_a_unit_is_given_out_once_with_its_slot(
    *, starts: int, at_once: int, later: float, interval: float, lifetime: float, gaps: list[float]
) -> None:
    at_once = min(at_once, starts)
    block = Block(1_000.0, starts, at_once, later, interval, lifetime)
    slots = [0.0] * at_once + [later + number * interval for number in range(starts - at_once)]
    now, used = block.since, 0
    for gap in gaps:
        now += gap
        wait = block.use(now)
        if wait is not None:
            assert now - block.since <= lifetime
            assert now + wait >= block.since + slots[used] - 1e-9
            used += 1
    assert used <= starts


def test_a_unit_says_how_far_its_slot_is() -> None:
    block = Block(since=0.0, starts=3, at_once=1, later=0.005, interval=0.005)
    assert block.use(0.0) == 0.0
    assert block.use(0.004) == pytest.approx(0.001)
    assert block.use(0.012) == 0.0
    assert block.use(0.013) is None


def test_an_old_block_gives_nothing() -> None:
    block = Block(since=0.0, starts=3, at_once=3, later=0.0, interval=0.001)
    assert block.use(HORIZON + 0.001) is None


def test_a_block_of_a_window_that_ends_is_good_until_then() -> None:
    block = Block(since=0.0, starts=9, at_once=9, later=0.0, interval=0.0, lifetime=0.005)
    assert block.use(0.005) == 0.0
    assert block.lasts(0.005)
    assert not block.lasts(0.0051)
    assert block.use(0.0051) is None


def test_a_refusal_lasts_for_20_ms_and_has_no_start() -> None:
    block = Block(since=0.0)
    assert block.lasts(HORIZON)
    assert block.use(HORIZON) is None
    assert not block.lasts(HORIZON + 0.001)


def test_demand_is_what_passed_in_the_last_20_ms() -> None:
    demand = Demand()

    def count(key: str, now: float) -> int:
        demand.count(key, now)
        return demand.recent(key, now)

    assert demand.recent("slow", 0.0) == 0
    assert count("slow", 0.0) == 1
    assert count("slow", 1.0) == 1
    wanted = [count("fast", number * 0.001) for number in range(100)]
    assert wanted[0] == 1
    assert 15 <= wanted[-1] <= 25
    assert demand.recent("fast", 0.11) >= 15
    assert demand.recent("fast", 10.0) == 0
    assert count("fast", 10.0) == 1


def test_demand_remembers_a_bounded_number_of_keys() -> None:
    demand = Demand()
    for number in range(20_000):
        demand.count(number, number * 1e-6)
    assert len(demand._counts) < 5_000
