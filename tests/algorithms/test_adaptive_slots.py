"""Adaptive slots, with an API that allows a number of calls at once and changes it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from celery_throttle.algorithms.memory import LocalReservation, MemoryLimits
from celery_throttle.algorithms.slots import Slots
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.observe.status_text import usage_text
from tests.algorithms.limits import SECOND
from tests.algorithms.sides import START
from tests.protocol import Protocol

API = LimitRef("api", None)


@dataclass
class Site:
    """An API that refuses calls beyond a number at once, and clients that make one call each.

    Attributes:
        clients: the calls that would be in progress without a limit.
        took: microseconds of a call; a refusal takes a tenth of it.
        allowed: calls at once.
        overloaded: whether it refuses all calls as overloaded.
    """

    local: MemoryLimits
    clients: int
    took: int = 200_000
    allowed: int = 1000
    overloaded: bool = False
    good: int = 0
    refused: int = 0
    slots: list[int] = field(default_factory=list)
    _now: int = START
    _in_progress: int = 0

    def __post_init__(self) -> None:
        self._ends: list[tuple[int, int, LocalReservation, bool, int]] = []
        self._number = self._paused = 0

    def play(self, seconds: int) -> None:
        """Advance the model by some seconds, and count the answers in them."""
        end = self._now + seconds * SECOND
        self.good, self.refused, self.slots = 0, 0, []
        while self._now < end:
            self._start()
            if self._ends:
                self._now, _, reservation, ok, sent = heapq.heappop(self._ends)
                self._finish(reservation, ok=ok, sent=sent)
            else:
                self._now = max(self._now + 1, self._paused)

    def _start(self) -> None:
        while self._now >= self._paused and len(self._ends) < self.clients:
            reservation = self.local.reserve({API: 1}, self._now)
            if reservation is None:
                return
            ok = self._in_progress < self.allowed and not self.overloaded
            self._in_progress += ok
            self._number += 1
            # Calls differ by a tenth in length, so they do not end all at once.
            took = self.took * (90 + self._number * 7 % 20) // 100 // (1 if ok else 10)
            heapq.heappush(self._ends, (self._now + took, self._number, reservation, ok, self._now))

    def _finish(self, reservation: LocalReservation, *, ok: bool, sent: int) -> None:
        self._in_progress -= ok
        feedback = Feedback(
            refused=not ok and not self.overloaded,
            overloaded=not ok and self.overloaded,
            took=(self._now - sent) / SECOND,
        )
        rest = self.local.learn({API: feedback}, self._now)
        self._paused = max(self._paused, self._now + rest)
        self.local.release(reservation)
        self.good += ok
        self.refused += not ok
        self.slots.append(slots_of(self.local))


def slots_of(local: MemoryLimits) -> int:
    (state,) = local._states[API]
    assert isinstance(state, Slots)
    return state.in_force(local.limits_of(API)[0])


def test_without_a_refusal_all_slots_are_in_force() -> None:
    site = Site(MemoryLimits({"api": "adaptive 2..50 at once"}), clients=80)
    site.play(10)
    assert min(site.slots) == 50
    assert site.refused == 0


@pytest.mark.thorough
@pytest.mark.parametrize("allowed", [4, 10, 25, 40])
def test_an_unknown_number_of_calls_at_once_is_found(allowed: int) -> None:
    """After the first ten seconds at most 2% refusals, and 85% of what the API allows."""
    site = Site(MemoryLimits({"api": "adaptive 2..50 at once"}), clients=80, allowed=allowed)
    site.play(10)
    site.play(60)
    assert site.refused <= 0.02 * (site.good + site.refused)
    assert site.good >= 0.85 * 60 * allowed * SECOND / site.took
    assert max(site.slots) <= allowed + 1


@pytest.mark.thorough
def test_an_api_that_allows_fewer_and_then_more() -> None:
    site = Site(MemoryLimits({"api": "adaptive 2..50 at once"}), clients=80, allowed=40)
    site.play(30)
    site.allowed = 10
    site.play(10)
    assert site.slots[-1] <= 11
    site.allowed = 40
    site.play(60)
    assert site.slots[-1] >= 34


def test_an_overload_of_everything_lowers_the_slots_once() -> None:
    site = Site(MemoryLimits({"api": "adaptive 2..50 at once"}), clients=80)
    site.play(5)
    site.overloaded = True
    site.play(20)
    assert site.slots[-1] == 45
    site.overloaded = False
    site.play(10)
    assert site.slots[-1] == 50


def test_the_number_does_not_grow_while_less_than_half_is_in_use() -> None:
    local = MemoryLimits({"api": "adaptive 2..50 at once"})
    for number in range(20):
        local.learn({API: Feedback(refused=True)}, START + number)
    assert slots_of(local) == 2
    local.pause(API, 0, START)
    now = START + 600 * SECOND
    for _ in range(1000):  # two of four are in use at most
        reservations = [local.reserve({API: 1}, now) for _ in range(2)]
        local.learn({API: Feedback()}, now)
        for reservation in filter(None, reservations):
            local.release(reservation)
        now += SECOND
    assert slots_of(local) == 5


def test_slots_that_fall_below_those_in_use_let_these_end() -> None:
    local = MemoryLimits({"api": "adaptive 1..4 at once"})
    reservations = [local.reserve({API: 1}, START) for _ in range(4)]
    local.learn({API: Feedback(refused=True, stop=0.0)}, START + 1)
    assert slots_of(local) == 2
    now = START + SECOND
    for number, reservation in enumerate(reservations):
        assert local.peek({API: 1}, now).allowed == (number > 2)
        assert reservation is not None
        local.release(reservation)
    assert local.peek({API: 1}, now).remaining == 2


def test_a_slow_answer_lowers_the_slots() -> None:
    local = MemoryLimits({"api": "adaptive 2..50 at once latency 2s"})
    local.reserve({API: 1}, START)
    local.learn({API: Feedback(took=2.0)}, START)
    assert slots_of(local) == 50
    local.learn({API: Feedback(took=2.1)}, START)
    assert slots_of(local) == 35


def test_a_new_range_keeps_what_was_learned() -> None:
    local = MemoryLimits({"api": "adaptive 2..50 at once"})
    local.learn({API: Feedback(refused=True, stop=0.0)}, START)
    texts = [("2..100", 35), ("40..100", 40), ("2..20", 20)]
    for second, (text, slots) in enumerate(texts, 1):
        local.define(API, Limit.parse(f"adaptive {text} at once"), START + second * SECOND)
        local.reserve({API: 1}, START + second * SECOND)
        assert slots_of(local) == slots


def test_status_and_waiting_tasks_follow_the_number(redis_url: str) -> None:
    lines = Protocol(redis_url, {"api": "adaptive 1..4 at once"})
    api = lines.limiter["api"]
    assert [lines.park(f"running {n}", ["api"]).outcome for n in range(4)] == ["admitted"] * 4
    for number in range(3):
        assert lines.park(f"waiting {number}", ["api"]).outcome == "parked"
    api.learn(Feedback(refused=True, stop=0.0))
    (usage,) = api.status().usage
    assert usage_text(usage).endswith("(adaptive 1..4 at once); 2 slots in force")
    tokens, holders = [], []
    for number in range(4):  # three of them end until another starts
        released = ("api", f"task running {number}")
        claimed = lines.claim(room=4, released=[released])
        assert len(claimed) == (number > 1)
        tokens += [one.token for one in claimed]
        holders += [f"w {one.token} {one.id}" for one in claimed]
    for _ in range(100):
        api.learn(Feedback())
    assert api.status().usage[0].share == 0.75
    # When a task ends, tasks take its slot and the one that was added.
    lines.park("last", ["api"])
    claimed = lines.claim(room=4, settled=tokens[:1], released=[("api", holders[0])])
    assert len(claimed) == 2
    lines.close()
