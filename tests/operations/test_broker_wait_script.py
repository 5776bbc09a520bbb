"""``broker_wait.lua`` called directly: when tasks that wait at the broker return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from celery_throttle.limits.key import ItemLike
from celery_throttle.store.script import Call, script
from tests.protocol import FOREVER, SECOND, Protocol

AHEAD = 20_000
LIMITS = {
    "api": "10/s",
    "burst": "10/s burst 3",
    "slow": "1/s",
    "day": "2/d using fixed-window",
    "slots": "2 at once",
}


@dataclass
class Told:
    outcome: str
    wait: int = 0
    turn: int = 0


class Turns(Protocol):
    def turn(
        self,
        *limits: ItemLike,
        turn: int = 0,
        cost: float = 1,
        max_wait: int = FOREVER,
        may_run: bool = True,
    ) -> Told:
        keys, requirement = self.keys, self.require(limits, cost)
        names = [keys.limits]
        self.tokens["holder"] += 1
        holder = f"holder {self.tokens['holder']}"
        args: list[Any] = [self.now, turn, AHEAD, max_wait, holder, 30 * SECOND, int(may_run), 0]
        for ref, amount in zip(requirement.refs, requirement.costs, strict=True):
            state, *pauses = keys.decision(ref)
            names += [
                state,
                keys.entries(ref),
                *pauses,
                keys.waiting_lists(ref),
                keys.return_times(ref),
            ]
            args += [ref.name, keys.field(ref), amount]
        outcome, *about = self.store.run(Call(script("broker_wait"), [*names, keys.totals()], args))
        if outcome == b"wait":
            return Told("wait", about[0], about[1])
        return Told(outcome.decode(), about[0])

    def all_told(self, limits: Sequence[ItemLike], count: int) -> list[Told]:
        return [self.turn(*limits) for _ in range(count)]


@pytest.fixture
def turns(redis_url: str) -> Iterator[Turns]:
    turns = Turns(redis_url, LIMITS)
    yield turns
    turns.close()


def test_each_is_told_a_time_of_its_own(turns: Turns) -> None:
    assert turns.turn("api") == Told("admitted")
    told = turns.all_told(["api"], 5)
    assert [one.wait for one in told] == [100_000, 200_000, 300_000, 400_000, 500_000]
    assert [one.turn - turns.now for one in told] == [one.wait for one in told]


def test_who_comes_at_its_turn_passes_and_nobody_overtakes(turns: Turns) -> None:
    turns.turn("api")
    first, second = turns.all_told(["api"], 2)
    turns.now += 100_000
    assert turns.turn("api").wait == 200_000  # though there is a unit now
    assert turns.turn("api", turn=first.turn) == Told("admitted")
    turns.now = second.turn
    assert turns.turn("api", turn=second.turn) == Told("admitted")


def test_who_comes_early_keeps_its_turn_or_is_booked_ahead(turns: Turns) -> None:
    turns.turn("api")
    told = turns.turn("api")
    turns.now += 50_000
    assert turns.turn("api", turn=told.turn) == Told("wait", 50_000, told.turn)
    turns.now += 40_000
    assert turns.turn("api", turn=told.turn) == Told("admitted", 10_000)


def test_who_comes_in_vain_is_told_the_next_time_among_those(turns: Turns) -> None:
    turns.turn("api")
    told = turns.all_told(["api"], 3)
    turns.now = told[2].turn
    assert turns.limiter["api"].try_acquire()  # a plain call, which cannot queue
    again = [turns.turn("api", turn=one.turn) for one in told]
    assert [one.wait for one in again] == [100_000, 200_000, 300_000]
    turns.now = again[0].turn
    assert turns.turn("api", turn=again[0].turn) == Told("admitted")


def test_all_of_a_fan_out_pass_at_the_rate(turns: Turns) -> None:
    waiting, starts = [turns.turn("burst") for _ in range(60)], []
    assert [one.outcome for one in waiting[:4]] == ["admitted"] * 3 + ["wait"]
    queue = sorted(one.turn for one in waiting if one.outcome == "wait")
    while queue:
        turn = queue.pop(0)
        turns.now = max(turns.now, turn - 5_000)
        told = turns.turn("burst", turn=turn)
        if told.outcome == "admitted":
            starts.append(turns.now + told.wait)
        else:
            queue = sorted([*queue, told.turn])
    assert len(starts) == 57
    assert starts[-1] - starts[0] == pytest.approx(56 * 100_000, abs=20_000)


def test_costs_and_several_limits(turns: Turns) -> None:
    assert turns.turn("api", "slow").outcome == "admitted"
    assert [turns.turn("api", "slow").wait for _ in range(3)] == [SECOND, 2 * SECOND, 3 * SECOND]
    assert turns.turn("api").wait == 3 * SECOND + 100_000
    assert turns.turn("burst", cost=3).outcome == "admitted"
    assert [turns.turn("burst", cost=2).wait for _ in range(2)] == [200_000, 400_000]
    assert turns.turn("burst", cost=4).outcome == "never"


def test_windows_pauses_and_slots(turns: Turns) -> None:
    assert [turns.turn("day").outcome for _ in range(3)] == ["admitted", "admitted", "wait"]
    turns.limiter["api"].pause(7)
    assert turns.turn("api").wait == 7 * SECOND
    assert [turns.turn("slots").outcome for _ in range(2)] == ["admitted"] * 2
    # When one is given back nobody knows: it is looked for now and then, by one after the other.
    assert [one.wait for one in turns.all_told(["slots"], 2)] == [SECOND, SECOND + 20_000]


def test_who_waits_for_the_end_of_a_pause_looks_whether_it_was_lifted(turns: Turns) -> None:
    turns.limiter["api"].pause(None)
    first, second = turns.all_told(["api"], 2)
    assert (first.wait, second.wait) == (60 * SECOND, 60 * SECOND + 100_000)
    assert turns.turn("api", max_wait=86_400 * SECOND).outcome == "late"
    turns.now = first.turn
    again = turns.turn("api", turn=first.turn)
    assert again.wait == 60 * SECOND
    turns.limiter["api"].resume()
    turns.now = second.turn
    assert turns.turn("api", turn=second.turn) == Told("admitted")
    turns.now = again.turn
    assert turns.turn("api", turn=again.turn) == Told("admitted")
    turns.limiter["api"].pause(3600)
    assert turns.turn("api").wait == 60 * SECOND
    assert turns.turn("api", max_wait=3000 * SECOND).outcome == "late"


def test_a_wait_that_is_too_long(turns: Turns) -> None:
    turns.turn("slow")
    assert turns.turn("slow", max_wait=SECOND) == Told("wait", SECOND, turns.now + SECOND)
    assert turns.turn("slow", max_wait=SECOND) == Told("late", 2 * SECOND)
    assert turns.turn("slow").wait == 2 * SECOND  # who was late has no turn


def test_without_a_process_nothing_is_taken(turns: Turns) -> None:
    assert turns.turn("api", may_run=False).outcome == "wait"
    assert turns.limiter["api"].try_acquire()


def test_turns_are_forgotten_once_they_have_passed(turns: Turns) -> None:
    turns.turn("slow")
    turns.turn("slow")
    key = turns.keys.return_times(turns.limiter.require(["slow"], 1).refs[0])
    assert 0 < turns.client.pttl(key) <= 1_000 + 3_600_000  # with a time of one's own, an hour more


@pytest.mark.parametrize("step", [-600 * SECOND, -SECOND, -50_000])
def test_a_turn_comes_nearly_as_soon_though_the_clock_steps_back(turns: Turns, step: int) -> None:
    """The time between the last call and the change of the clock is unknown: later by a unit."""
    turns.turn("api")
    waiting = [(one.wait, one.turn) for one in turns.all_told(["api"], 3)]
    began = turns.now = turns.now + step
    while waiting:
        wait, turn = waiting.pop(0)
        turns.now = max(turns.now, began + wait)
        told = turns.turn("api", turn=turn)
        if told.outcome == "wait":
            waiting = sorted([*waiting, (turns.now - began + told.wait, told.turn)])
    assert turns.now - began <= 300_000 + 100_000 + 100_000
