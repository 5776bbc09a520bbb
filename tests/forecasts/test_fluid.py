"""The model of a forecast beside a simulation that serves tasks one by one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_throttle.forecasts.capacity import Supply
from celery_throttle.forecasts.fluid import Line
from celery_throttle.forecasts.groups import empty_times

DUST = 1e-9


class Meter:
    """A limit that counts units one by one."""

    def __init__(self, supply: Supply) -> None:
        self.supply = supply
        self.stored, self.at, self.steps = supply.stored, 0.0, list(supply.steps)

    def move(self, now: float) -> None:
        while self.steps and self.steps[0][0] <= now + DUST:
            self.stored = min(self.supply.most, self.stored + self.steps.pop(0)[1])
            self.at = now
        if not self.steps:
            grown = self.stored + (now - self.at) * self.supply.rate
            self.stored = min(self.supply.most, grown)
        self.at = now

    def wait(self, cost: float, now: float) -> float:
        paused = max(0.0, self.supply.paused - now)
        if self.stored >= cost - DUST:
            return paused
        if self.steps:
            return max(paused, self.steps[0][0] - now)
        return max(paused, (cost - self.stored) / self.supply.rate)


def simulate(lines: Sequence[Line], supplies: Sequence[Supply]) -> list[float]:
    """When each line is empty: by rank, then who had least for its weight.

    Nobody passes by one that waits for the same limit before it.
    """
    meters = [Meter(supply) for supply in supplies]
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
            if wait > DUST:
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


def assert_alike(lines: Sequence[Line], supplies: Sequence[Supply], slack: float = 0.0) -> None:
    expected = simulate(lines, supplies)
    found = [emptied.seconds for emptied in empty_times(lines, supplies)]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0.02, abs=slack)


def api(rate: float = 10.0, **about: float) -> Supply:
    return Supply("api", rate, **about)  # type: ignore[arg-type]  # no steps


def test_one_line_waits_for_one_limit() -> None:
    (emptied,) = empty_times([Line(100, ((0, 1.0),))], [api(stored=0.5)])
    assert emptied.seconds == pytest.approx(9.95)
    assert emptied.bound == "api"


def test_what_does_not_wait_is_empty_at_once() -> None:
    lines = [Line(7, ((0, 1.0),)), Line(5, ())]
    assert {
        (one.seconds, one.bound) for one in empty_times(lines, [api(stored=20.0, most=20)])
    } == {(0.0, None)}
    assert empty_times([], []) == []


def test_lines_of_one_limit_are_served_in_turn() -> None:
    lines = [Line(tasks, ((0, 1.0),)) for tasks in (30, 60, 120)]
    assert_alike(lines, [api()], slack=0.3)
    assert [one.seconds for one in empty_times(lines, [api()])] == pytest.approx([9, 15, 21])


def test_weights_share_a_limit() -> None:
    lines = [Line(100, ((0, 1.0),), weight=3), Line(100, ((0, 1.0),))]
    assert_alike(lines, [api()], slack=0.3)
    assert empty_times(lines, [api()])[0].seconds == pytest.approx(400 / 30)


def test_queues_have_equal_shares() -> None:
    costs = ((0, 1.0),)
    lines = [Line(200, costs), *[Line(20, costs, queue="other")] * 4]
    found = [emptied.seconds for emptied in empty_times(lines, [api()])]
    assert found == pytest.approx([28, 16, 16, 16, 16])


def test_a_better_rank_goes_first() -> None:
    lines = [Line(100, ((0, 1.0),), rank=5), Line(50, ((0, 1.0),), rank=0)]
    assert_alike(lines, [api()])
    assert [one.seconds for one in empty_times(lines, [api()])] == pytest.approx([15, 5])


def test_who_waits_elsewhere_leaves_its_share_to_others() -> None:
    lines = [Line(400, ((0, 1.0),)), Line(40, ((0, 1.0), (1, 1.0)))]
    supplies = [api(), Supply("mail", 1.0)]
    assert_alike(lines, supplies, slack=0.3)
    late = empty_times(lines, supplies)
    assert [one.bound for one in late] == ["api", "mail"]


def test_a_better_rank_that_waits_elsewhere_does_too() -> None:
    lines = [Line(400, ((0, 1.0),), rank=9), Line(40, ((0, 1.0), (1, 1.0)))]
    assert_alike(lines, [api(), Supply("mail", 1.0)], slack=0.3)


def test_a_pause_fills_what_can_be_stored() -> None:
    supplies = [api(stored=2.0, most=20.0, paused=5.0)]
    assert_alike([Line(100, ((0, 1.0),))], supplies)
    (emptied,) = empty_times([Line(100, ((0, 1.0),))], supplies)
    assert emptied.seconds == pytest.approx(5 + 80 / 10)


def test_what_is_owed_comes_first() -> None:
    (emptied,) = empty_times([Line(100, ((0, 1.0),))], [api(stored=-30.0)])
    assert emptied.seconds == pytest.approx(13)


def test_windows_come_one_by_one() -> None:
    window = Supply("window", 5000 / 3600, 5000, 5000, steps=((100, 5000), (3700, 5000)))
    (emptied,) = empty_times([Line(12_000, ((0, 1.0),))], [window])
    assert emptied.seconds == pytest.approx(3700)


supplies_of = st.builds(
    Supply,
    name=st.just("limit"),
    rate=st.floats(1, 50),
    stored=st.floats(0, 5),
    most=st.integers(5, 30).map(float),
    paused=st.sampled_from([0.0, 0.0, 3.0]),
)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Line], list[Supply]]:
    """Several ranks and weights at one limit that all need, some with a limit of their own."""
    supplies = [draw(supplies_of)]
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        costs = [(0, draw(st.sampled_from([1.0, 1.0, 2.0])))]
        if draw(st.booleans()):
            supplies.append(draw(supplies_of))
            costs.append((len(supplies) - 1, 1.0))
        line = Line(
            draw(st.integers(50, 400)),
            tuple(costs),
            draw(st.integers(0, 2)),
            draw(st.sampled_from([1.0, 1.0, 5.0])),
        )
        lines.append(line)
    return lines, supplies


@given(scenes())
@settings(max_examples=60, deadline=None)
def test_any_lines_end_when_they_end_one_by_one(scene: tuple[list[Line], list[Supply]]) -> None:
    """A fluid has no turns: a line may be some of them off, the last of all hardly."""
    lines, supplies = scene
    expected = simulate(lines, supplies)
    found = [emptied.seconds for emptied in empty_times(lines, supplies)]
    slowest = min(supply.rate for supply in supplies)
    assert max(found) == pytest.approx(max(expected), rel=0.02, abs=3 / slowest)


@given(scenes())
@settings(max_examples=60, deadline=None)
def test_lines_that_are_alike_are_served_as_each_of_them(
    scene: tuple[list[Line], list[Supply]],
) -> None:
    lines, (shared, *own) = scene
    copies = 20
    many = [
        Line(line.tasks, tuple((one and one + copy * len(own), cost) for one, cost in line.costs))
        for copy in range(copies)
        for line in lines
    ]
    wide = Supply("limit", shared.rate * copies, shared.stored * copies, shared.most * copies)
    plain = [Line(line.tasks, line.costs) for line in lines]
    narrow = Supply("limit", shared.rate, shared.stored, shared.most)
    found = [one.seconds for one in empty_times(many, [wide, *own * copies])]
    expected = [one.seconds for one in empty_times(plain, [narrow, *own])]
    assert found == pytest.approx(expected * copies, rel=1e-6)


def test_where_all_lines_differ_each_limit_counts_by_itself() -> None:
    """A chain: each line shares a limit with the next, and none is like another."""
    supplies = [Supply(f"limit-{number}", 10.0 + number) for number in range(2001)]
    lines = [Line(100 + one, ((one, 1.0), (one + 1, 1.0))) for one in range(2000)]
    began = time.process_time()
    found = empty_times(lines, supplies)
    assert time.process_time() - began < 5
    assert found[0].seconds == pytest.approx(max(100 / 10, 201 / 11), rel=0.05)


@pytest.mark.parametrize("keyed", [False, True])
def test_many_lines_take_little_time(keyed: bool) -> None:  # noqa: FBT001
    chance = random.Random(1)
    supplies, lines = [Supply("api", 1000.0)], []
    for number in range(20_000):
        costs = [(0, 1.0)]
        if keyed:
            supplies.append(Supply("tenant", 10.0, chance.random()))
            costs.append((number + 1, 1.0))
        lines.append(Line(chance.randrange(1, 2000), tuple(costs)))
    began = time.process_time()
    found = empty_times(lines, supplies)
    assert time.process_time() - began < 5
    total = sum(line.tasks for line in lines)
    assert max(one.seconds for one in found) == pytest.approx(total / 1000, rel=0.01)
    assert all(one.seconds < inf for one in found)
