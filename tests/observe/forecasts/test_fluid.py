"""The fluid model of forecasts, compared with a simulation that serves tasks one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.observe.forecasts.fluid import Capacity, FluidLine, drain, drain_times
from tests.sizes import examples

EPSILON = 1e-9


class Meter:
    """A limit in the simulation."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.stored, self.at, self.windows = capacity.stored, 0.0, list(capacity.windows)

    def move(self, now: float) -> None:
        while self.windows and self.windows[0][0] <= now + EPSILON:
            self.stored = min(self.capacity.burst, self.stored + self.windows.pop(0)[1])
            self.at = now
        if not self.windows:
            grown = self.stored + (now - self.at) * self.capacity.rate
            self.stored = min(self.capacity.burst, grown)
        self.at = now

    def wait(self, cost: float, now: float) -> float:
        paused = max(0.0, self.capacity.paused - now)
        if self.stored >= cost - EPSILON:
            return paused
        if self.windows:
            return max(paused, self.windows[0][0] - now)
        return max(paused, (cost - self.stored) / self.capacity.rate)


def simulate(lines: Sequence[FluidLine]) -> list[float]:
    """Return when each line is empty. Lines are served by rank, then by tasks per weight.

    No line passes another that waits for the same limit before it.
    """
    meters = {capacity: Meter(capacity) for line in lines for capacity, _ in line.costs}
    served, ends, now = [0] * len(lines), [0.0] * len(lines), 0.0
    left = set(range(len(lines)))
    while left:
        for meter in meters.values():
            meter.move(now)
        soonest, taken = inf, set[Capacity]()
        for place in sorted(
            left, key=lambda one: (lines[one].rank, served[one] / lines[one].weight, one)
        ):
            costs = lines[place].costs
            waits = ((meters[one].wait(cost, now), one) for one, cost in costs)
            wait, bound = max(waits, key=itemgetter(0))
            if wait > EPSILON:
                taken.add(bound)
                soonest = min(soonest, wait)
            elif not taken & {one for one, _ in costs}:
                break
        else:
            now += soonest
            continue
        for one, cost in lines[place].costs:
            meters[one].stored -= cost
        served[place] += 1
        ends[place] = now
        if served[place] == lines[place].tasks:
            left.discard(place)
    return ends


def assert_alike(lines: Sequence[FluidLine], slack: float = 0.0) -> None:
    expected = simulate(lines)
    found = [drained.seconds for drained in drain_times(lines)]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02, abs=slack)


def api(rate: float = 10.0, **about: float) -> Capacity:
    return Capacity("api", rate, **about)  # type: ignore[arg-type]  # no windows


def line(tasks: float, *capacities: Capacity, **about: Any) -> FluidLine:
    """Return a line whose tasks take a unit of each capacity."""
    return FluidLine(tasks, tuple((capacity, 1.0) for capacity in capacities), **about)


def seconds(lines: Sequence[FluidLine]) -> list[float]:
    return [drained.seconds for drained in drain_times(lines)]


def test_one_line_waits_for_one_limit() -> None:
    (drained,) = drain_times([line(100, api(stored=0.5))])
    assert drained.seconds == pytest.approx(9.95)
    assert drained.limit == "api"


def test_what_does_not_wait_is_empty_at_once() -> None:
    found = drain_times([line(7, api(stored=20.0, burst=20)), line(5)])
    assert {(one.seconds, one.limit) for one in found} == {(0.0, None)}
    assert drain_times([]) == []


def test_what_is_paused_until_resumed_is_never_empty() -> None:
    (drained,) = drain_times([line(7, api(0.0))])
    assert (drained.seconds, drained.limit) == (inf, "api")


def test_lines_of_one_limit_are_served_in_turn() -> None:
    shared = api()
    lines = [line(tasks, shared) for tasks in (30, 60, 120)]
    assert_alike(lines, slack=0.3)
    assert seconds(lines) == pytest.approx([9, 15, 21])


def test_weights_share_a_limit() -> None:
    shared = api()
    lines = [line(100, shared, weight=3), line(100, shared)]
    assert_alike(lines, slack=0.3)
    assert seconds(lines)[0] == pytest.approx(400 / 30)


def test_queues_have_equal_shares() -> None:
    shared = api()
    lines = [line(200, shared), *[line(20, shared, queue="other")] * 4]
    assert seconds(lines) == pytest.approx([28, 16, 16, 16, 16])


def test_a_better_rank_goes_first() -> None:
    shared = api()
    lines = [line(100, shared, rank=5), line(50, shared, rank=0)]
    assert_alike(lines)
    assert seconds(lines) == pytest.approx([15, 5])


def test_who_waits_elsewhere_leaves_its_share_to_others() -> None:
    shared = api()
    lines = [line(400, shared), line(40, shared, Capacity("mail", 1.0))]
    assert_alike(lines, slack=0.3)
    assert [one.limit for one in drain_times(lines)] == ["api", "mail"]


def test_a_better_rank_that_waits_elsewhere_does_too() -> None:
    shared = api()
    lines = [line(400, shared, rank=9), line(40, shared, Capacity("mail", 1.0))]
    assert_alike(lines, slack=0.3)


def test_a_pause_fills_what_can_be_stored() -> None:
    lines = [line(100, api(stored=2.0, burst=20.0, paused=5.0))]
    assert_alike(lines)
    assert seconds(lines) == [pytest.approx(5 + 80 / 10)]


def test_what_is_owed_comes_first() -> None:
    assert seconds([line(100, api(stored=-30.0))]) == [pytest.approx(13)]


def test_windows_come_one_by_one() -> None:
    window = Capacity("window", 5000 / 3600, 5000, 5000, windows=((100, 5000), (3700, 5000)))
    assert seconds([line(12_000, window)]) == [pytest.approx(3700)]


capacities_of = st.builds(
    Capacity,
    name=st.just("limit"),
    rate=st.floats(1, 50),
    stored=st.floats(0, 5),
    burst=st.integers(5, 30).map(float),
    paused=st.sampled_from([0.0, 0.0, 3.0]),
)


@st.composite
def scenes(draw: st.DrawFn) -> list[FluidLine]:
    """Several ranks and weights at one shared limit, some with a limit of their own."""
    shared, lines = draw(capacities_of), []
    for _ in range(draw(st.integers(1, 6))):
        costs = [(shared, draw(st.sampled_from([1.0, 1.0, 2.0])))]
        if draw(st.booleans()):
            costs.append((draw(capacities_of), 1.0))
        line = FluidLine(
            draw(st.integers(50, 400)),
            tuple(costs),
            draw(st.integers(0, 2)),
            draw(st.sampled_from([1.0, 1.0, 5.0])),
        )
        lines.append(line)
    return lines


@given(scenes())
@settings(max_examples=examples(60))
def test_any_lines_end_when_they_end_one_by_one(lines: list[FluidLine]) -> None:
    """A fluid has no single tasks: a line may be off by some of them, the last line hardly."""
    slowest = min(capacity.rate for line in lines for capacity, _ in line.costs)
    expected = max(simulate(lines))
    assert max(seconds(lines)) == pytest.approx(expected, rel=0.02, abs=3 / slowest)


@given(scenes())
@settings(max_examples=examples(60))
def test_lines_that_are_alike_are_served_as_each_of_them(lines: list[FluidLine]) -> None:
    shared, copies = lines[0].costs[0][0], 20
    narrow = Capacity("limit", shared.rate, shared.stored, shared.burst)
    wide = Capacity("limit", shared.rate * copies, shared.stored * copies, shared.burst * copies)

    def copy(line: FluidLine, common: Capacity) -> FluidLine:
        """Return the line at another shared limit, with a limit of its own like that before."""
        (_, cost), *own = line.costs
        return FluidLine(
            line.tasks, ((common, cost), *((replace(one), units) for one, units in own))
        )

    found = seconds([copy(line, wide) for _ in range(copies) for line in lines])
    expected = seconds([copy(line, narrow) for line in lines])
    assert found == pytest.approx(expected * copies, rel=1e-6)


def test_where_all_lines_differ_each_limit_counts_by_itself() -> None:
    """A chain: each line shares a limit with the next, and all differ."""
    capacities = [Capacity(f"limit-{number}", 10.0 + number) for number in range(2001)]
    lines = [line(100 + one, *capacities[one : one + 2]) for one in range(2000)]
    began = time.process_time()
    found = drain_times(lines)
    assert time.process_time() - began < 5
    assert found[0].seconds == pytest.approx(max(100 / 10, 201 / 11), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_many_lines_have_a_small_error(seed: int) -> None:
    """Tenants with a line in each of two queues, a limit of their own, and one that all share."""
    chance = random.Random(seed)
    shared, lines = Capacity("api", 20.0), []
    for _ in range(300):
        tenant = Capacity("tenant", 1.0, chance.random())
        lines += [line(chance.randrange(1, 100), shared, tenant, queue=queue) for queue in "ab"]
    found = seconds(lines)
    exact = [one.seconds for one in drain(lines)]
    assert max(found) == pytest.approx(max(exact), rel=0.02)
    errors = [abs(one - other) / other for one, other in zip(found, exact, strict=True)]
    assert sum(errors) / len(errors) < 0.03


def test_many_lines_of_one_limit_are_exact() -> None:
    shared, chance = api(stored=-3.0, paused=2.0), random.Random(1)
    lines = [
        line(
            chance.randrange(1, 50),
            shared,
            rank=chance.randrange(3),
            queue=chance.choice("abc"),
            weight=chance.choice([1.0, 5.0]),
        )
        for _ in range(250)
    ]
    assert seconds(lines) == pytest.approx([one.seconds for one in drain(lines)])


@pytest.mark.parametrize("keyed", [False, True])
def test_many_lines_take_little_time(keyed: bool) -> None:  # noqa: FBT001
    chance = random.Random(1)
    shared, lines = Capacity("api", 1000.0), []
    for _ in range(20_000):
        own = [Capacity("tenant", 10.0, chance.random())] if keyed else []
        lines.append(line(chance.randrange(1, 2000), shared, *own))
    began = time.process_time()
    found = drain_times(lines)
    assert time.process_time() - began < 5
    total = sum(line.tasks for line in lines)
    assert max(one.seconds for one in found) == pytest.approx(total / 1000, rel=0.01)
    assert all(one.seconds < inf for one in found)
