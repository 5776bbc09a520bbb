"""The fluid model of forecasts, compared with a simulation that serves tasks one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.observe.forecasts.capacity import Capacity
from celery_throttle.observe.forecasts.fluid import FluidLine, drain
from celery_throttle.observe.forecasts.merge import drain_times
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


def simulate(lines: Sequence[FluidLine], capacities: Sequence[Capacity]) -> list[float]:
    """Return when each line is empty. Lines are served by rank, then by tasks per weight.

    No line passes another that waits for the same limit before it.
    """
    meters = [Meter(capacity) for capacity in capacities]
    served, ends, now = [0] * len(lines), [0.0] * len(lines), 0.0
    left = set(range(len(lines)))
    while left:
        for meter in meters:
            meter.move(now)
        soonest, taken = inf, set[int]()
        for place in sorted(
            left, key=lambda one: (lines[one].rank, served[one] / lines[one].weight, one)
        ):
            costs = lines[place].costs
            wait, bound = max(((meters[one].wait(cost, now), one) for one, cost in costs))
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


def assert_alike(
    lines: Sequence[FluidLine], capacities: Sequence[Capacity], slack: float = 0.0
) -> None:
    expected = simulate(lines, capacities)
    found = [drained.seconds for drained in drain_times(lines, capacities)]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02, abs=slack)


def api(rate: float = 10.0, **about: float) -> Capacity:
    return Capacity("api", rate, **about)  # type: ignore[arg-type]  # no windows


def test_one_line_waits_for_one_limit() -> None:
    (drained,) = drain_times([FluidLine(100, ((0, 1.0),))], [api(stored=0.5)])
    assert drained.seconds == pytest.approx(9.95)
    assert drained.limit == "api"


def test_what_does_not_wait_is_empty_at_once() -> None:
    lines = [FluidLine(7, ((0, 1.0),)), FluidLine(5, ())]
    assert {
        (one.seconds, one.limit) for one in drain_times(lines, [api(stored=20.0, burst=20)])
    } == {(0.0, None)}
    assert drain_times([], []) == []


def test_lines_of_one_limit_are_served_in_turn() -> None:
    lines = [FluidLine(tasks, ((0, 1.0),)) for tasks in (30, 60, 120)]
    assert_alike(lines, [api()], slack=0.3)
    assert [one.seconds for one in drain_times(lines, [api()])] == pytest.approx([9, 15, 21])


def test_weights_share_a_limit() -> None:
    lines = [FluidLine(100, ((0, 1.0),), weight=3), FluidLine(100, ((0, 1.0),))]
    assert_alike(lines, [api()], slack=0.3)
    assert drain_times(lines, [api()])[0].seconds == pytest.approx(400 / 30)


def test_queues_have_equal_shares() -> None:
    costs = ((0, 1.0),)
    lines = [FluidLine(200, costs), *[FluidLine(20, costs, queue="other")] * 4]
    found = [drained.seconds for drained in drain_times(lines, [api()])]
    assert found == pytest.approx([28, 16, 16, 16, 16])


def test_a_better_rank_goes_first() -> None:
    lines = [FluidLine(100, ((0, 1.0),), rank=5), FluidLine(50, ((0, 1.0),), rank=0)]
    assert_alike(lines, [api()])
    assert [one.seconds for one in drain_times(lines, [api()])] == pytest.approx([15, 5])


def test_who_waits_elsewhere_leaves_its_share_to_others() -> None:
    lines = [FluidLine(400, ((0, 1.0),)), FluidLine(40, ((0, 1.0), (1, 1.0)))]
    capacities = [api(), Capacity("mail", 1.0)]
    assert_alike(lines, capacities, slack=0.3)
    late = drain_times(lines, capacities)
    assert [one.limit for one in late] == ["api", "mail"]


def test_a_better_rank_that_waits_elsewhere_does_too() -> None:
    lines = [FluidLine(400, ((0, 1.0),), rank=9), FluidLine(40, ((0, 1.0), (1, 1.0)))]
    assert_alike(lines, [api(), Capacity("mail", 1.0)], slack=0.3)


def test_a_pause_fills_what_can_be_stored() -> None:
    capacities = [api(stored=2.0, burst=20.0, paused=5.0)]
    assert_alike([FluidLine(100, ((0, 1.0),))], capacities)
    (drained,) = drain_times([FluidLine(100, ((0, 1.0),))], capacities)
    assert drained.seconds == pytest.approx(5 + 80 / 10)


def test_what_is_owed_comes_first() -> None:
    (drained,) = drain_times([FluidLine(100, ((0, 1.0),))], [api(stored=-30.0)])
    assert drained.seconds == pytest.approx(13)


def test_windows_come_one_by_one() -> None:
    window = Capacity("window", 5000 / 3600, 5000, 5000, windows=((100, 5000), (3700, 5000)))
    (drained,) = drain_times([FluidLine(12_000, ((0, 1.0),))], [window])
    assert drained.seconds == pytest.approx(3700)


capacities_of = st.builds(
    Capacity,
    name=st.just("limit"),
    rate=st.floats(1, 50),
    stored=st.floats(0, 5),
    burst=st.integers(5, 30).map(float),
    paused=st.sampled_from([0.0, 0.0, 3.0]),
)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[FluidLine], list[Capacity]]:
    """Several ranks and weights at one shared limit, some with a limit of their own."""
    capacities = [draw(capacities_of)]
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        costs = [(0, draw(st.sampled_from([1.0, 1.0, 2.0])))]
        if draw(st.booleans()):
            capacities.append(draw(capacities_of))
            costs.append((len(capacities) - 1, 1.0))
        line = FluidLine(
            draw(st.integers(50, 400)),
            tuple(costs),
            draw(st.integers(0, 2)),
            draw(st.sampled_from([1.0, 1.0, 5.0])),
        )
        lines.append(line)
    return lines, capacities


@given(scenes())
@settings(max_examples=examples(60))
def test_any_lines_end_when_they_end_one_by_one(
    scene: tuple[list[FluidLine], list[Capacity]],
) -> None:
    """A fluid has no single tasks: a line may be off by some of them, the last line hardly."""
    lines, capacities = scene
    expected = simulate(lines, capacities)
    found = [drained.seconds for drained in drain_times(lines, capacities)]
    slowest = min(capacity.rate for capacity in capacities)
    assert max(found) == pytest.approx(max(expected), rel=0.02, abs=3 / slowest)


@given(scenes())
@settings(max_examples=examples(60))
def test_lines_that_are_alike_are_served_as_each_of_them(
    scene: tuple[list[FluidLine], list[Capacity]],
) -> None:
    lines, (shared, *own) = scene
    copies = 20
    many = [
        FluidLine(
            line.tasks, tuple((one and one + copy * len(own), cost) for one, cost in line.costs)
        )
        for copy in range(copies)
        for line in lines
    ]
    wide = Capacity("limit", shared.rate * copies, shared.stored * copies, shared.burst * copies)
    plain = [FluidLine(line.tasks, line.costs) for line in lines]
    narrow = Capacity("limit", shared.rate, shared.stored, shared.burst)
    found = [one.seconds for one in drain_times(many, [wide, *own * copies])]
    expected = [one.seconds for one in drain_times(plain, [narrow, *own])]
    assert found == pytest.approx(expected * copies, rel=1e-6)


def test_where_all_lines_differ_each_limit_counts_by_itself() -> None:
    """A chain: each line shares a limit with the next, and all differ."""
    capacities = [Capacity(f"limit-{number}", 10.0 + number) for number in range(2001)]
    lines = [FluidLine(100 + one, ((one, 1.0), (one + 1, 1.0))) for one in range(2000)]
    began = time.process_time()
    found = drain_times(lines, capacities)
    assert time.process_time() - began < 5
    assert found[0].seconds == pytest.approx(max(100 / 10, 201 / 11), rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_similar_lines_are_taken_together_with_a_small_error(seed: int) -> None:
    """Tenants with a line in each of two queues, a limit of their own, and one that all share."""
    chance = random.Random(seed)
    capacities, lines = [Capacity("api", 20.0)], []
    for tenant in range(1, 301):
        capacities.append(Capacity("tenant", 1.0, chance.random()))
        for queue in ("a", "b"):
            costs = ((0, 1.0), (tenant, 1.0))
            lines.append(FluidLine(chance.randrange(1, 100), costs, queue=queue))
    found = [one.seconds for one in drain_times(lines, capacities)]
    exact = [one.seconds for one in drain(lines, capacities)]
    assert max(found) == pytest.approx(max(exact), rel=0.02)
    errors = [abs(one - other) / other for one, other in zip(found, exact, strict=True)]
    assert sum(errors) / len(errors) < 0.03


@pytest.mark.parametrize("keyed", [False, True])
def test_many_lines_take_little_time(keyed: bool) -> None:  # noqa: FBT001
    chance = random.Random(1)
    capacities, lines = [Capacity("api", 1000.0)], []
    for number in range(20_000):
        costs = [(0, 1.0)]
        if keyed:
            capacities.append(Capacity("tenant", 10.0, chance.random()))
            costs.append((number + 1, 1.0))
        lines.append(FluidLine(chance.randrange(1, 2000), tuple(costs)))
    began = time.process_time()
    found = drain_times(lines, capacities)
    assert time.process_time() - began < 5
    total = sum(line.tasks for line in lines)
    assert max(one.seconds for one in found) == pytest.approx(total / 1000, rel=0.01)
    assert all(one.seconds < inf for one in found)
