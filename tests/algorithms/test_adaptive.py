"""Adaptive limits, with an API that changes its own limit without notice."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest

from celery_throttle.algorithms.adaptive import (
    AGAIN_US,
    KEPT_PERCENT,
    KEPT_PERCENT_AGAIN,
    MAX_STOP_US,
    STOP_US,
    Adaptive,
)
from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.limits.feedback import DEFAULT_STOP_SECONDS, Feedback
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.store.script import pack_command
from tests.algorithms.limits import SECOND
from tests.algorithms.properties import Sides, shown
from tests.algorithms.sides import START, Side
from tests.algorithms.traces import Step, learning
from tests.algorithms.wire import Commands, Playing

API = LimitRef("api", None)


@dataclass
class Site:
    """An API with a limit, in whole seconds or evenly spaced, and clients that use all of it.

    Attributes:
        latency: microseconds from a request to its answer.
        clients: how many send, each one request at a time.
        evenly: whether the API counts evenly, with some at once.
        limit: what it admits a second.
    """

    local: MemoryLimits
    latency: int
    clients: int
    evenly: bool
    limit: int = 100
    sent: int = 0
    refused: int = 0
    shares: list[int] = field(default_factory=list)
    _now: int = START
    _till: int = 0
    _window: tuple[int, int] = (0, 0)
    _paused: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[int, int, bool | None]] = [
            (START + number, number, None) for number in range(self.clients)
        ]

    def play(self, seconds: int) -> None:
        """Advance the model by some seconds, and count the requests in them."""
        end = self._now + seconds * SECOND
        self.sent, self.refused, self.shares = 0, 0, []
        while self._events[0][0] < end:
            self._now, number, answer = heapq.heappop(self._events)
            event = self._send(number) if answer is None else self._hear(number, ok=answer)
            heapq.heappush(self._events, event)
        self._now = end

    def _send(self, number: int) -> tuple[int, int, bool | None]:
        now = self._now
        if now < self._paused:
            return self._paused, number, None
        decision = self.local.acquire({API: 1}, now)
        if not decision:
            return now + round((decision.retry_after or 0) * SECOND), number, None
        self.sent += 1
        return now + self.latency, number, self._admits(now + self.latency // 2)

    def _admits(self, at: int) -> bool:
        if self.evenly:
            admitted = self._till - at <= SECOND // 10
            self._till = max(self._till, at) + admitted * (SECOND // self.limit)
            return admitted
        second, count = self._window
        self._window = at // SECOND, (count if second == at // SECOND else 0) + 1
        return self._window[1] <= self.limit

    def _hear(self, number: int, *, ok: bool) -> tuple[int, int, bool | None]:
        feedback = Feedback(refused=not ok, took=self.latency / SECOND)
        rest = self.local.learn([API], feedback, self._now)
        self._paused = max(self._paused, self._now + rest)
        self.refused += not ok
        self.shares.append(share_of(self.local))
        return self._now, number, None


def share_of(local: MemoryLimits) -> int:
    (state,) = local._states[API]
    assert isinstance(state, Adaptive)
    return state.rate.share


@pytest.mark.parametrize("evenly", [False, True], ids=["windows", "evenly"])
@pytest.mark.parametrize("ms", [5, 20])
def test_an_api_that_halves_its_limit_without_a_word(ms: int, *, evenly: bool) -> None:
    """Within 10% of the new limit after 30 seconds, and at most 2% refusals."""
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    site = Site(local, ms * 1000, clients=4, evenly=evenly)
    site.play(10)
    assert site.refused == 0
    assert site.sent >= 995
    site.limit = 50
    site.play(30)
    assert site.refused <= 0.02 * site.sent
    site.play(60)
    assert min(site.shares) >= 450_000
    assert max(site.shares) <= 550_000
    assert site.refused <= 0.02 * site.sent
    assert site.sent - site.refused >= 0.95 * 60 * 50
    site.limit = 100
    site.play(60)  # back at a hundredth in a second
    assert site.shares[-1] == 1_000_000


def test_a_slow_api_is_asked_for_less() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s latency 200ms"})
    site = Site(local, 100_000, clients=20, evenly=False)
    site.play(10)
    assert site.shares[-1] == 1_000_000
    site.latency = 201_000
    site.play(30)
    assert site.shares[-1] == 100_000
    assert site.refused == 0
    site.latency = 200_000
    site.play(10)
    assert site.shares[-1] > 150_000


def answered(local: MemoryLimits, at: int, *, refused: bool = False, took: float = 0.0) -> int:
    return local.learn([API], Feedback(refused=refused, took=took), at)


def test_what_was_sent_before_the_last_fall_says_nothing_new() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    assert answered(local, START, refused=True) == STOP_US
    assert share_of(local) == KEPT_PERCENT * 10_000
    for refused in (True, False):
        assert answered(local, START + SECOND, refused=refused, took=1.1) == 0
    assert share_of(local) == KEPT_PERCENT * 10_000


def test_refusals_in_a_row_stop_it_for_longer_and_longer() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    at, rests = START, []
    for _ in range(12):
        rests.append(answered(local, at, refused=True))
        at += 11 * SECOND
    assert rests == [min(STOP_US * 2**number, MAX_STOP_US) for number in range(12)]
    answered(local, at)
    assert answered(local, at + 1, refused=True) == STOP_US


def test_it_falls_deeper_if_it_falls_again_at_once() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    answered(local, START, refused=True)
    answered(local, START + AGAIN_US - 1, refused=True)
    assert share_of(local) == KEPT_PERCENT * KEPT_PERCENT_AGAIN * 100
    answered(local, START + 2 * AGAIN_US, refused=True)
    assert share_of(local) == KEPT_PERCENT * KEPT_PERCENT_AGAIN * KEPT_PERCENT


def test_it_does_not_grow_while_nobody_asks() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    for second in range(20):
        answered(local, START + second * SECOND, refused=True)
    low = share_of(local)
    answered(local, START + 1000 * SECOND)
    assert share_of(local) == low + 10_000


@shown(400, ["adaptive"], learning)
def test_its_bounds_are_never_left(side: Side, trace: list[Step]) -> Playing[None]:
    """Whatever the feedback; `test_bounds` shows that no more is admitted than at the highest."""
    for step in trace:
        yield from side.play(step)
        (state,) = side.local._states.get(side.ref, (None,))
        if state is None:
            continue
        assert isinstance(state, Adaptive)
        assert side.limit.lowest_share <= state.rate.share <= 1_000_000


def test_a_rate_is_remembered_for_an_hour_after_the_last_answer(sides: Sides) -> None:
    def play(side: Side, _trace: list[Step]) -> Playing[None]:
        yield from side.play(Step("learn", worth=0, which=1))
        yield from side.peek(0)
        (lasts,) = yield Commands([pack_command("PTTL", side.plans.keys.state(side.ref))])
        # With a time of the caller's own an hour is added.
        assert 3_600_000 < lasts - 3_600_000 + 1000 <= 3_600_000 + 1000

    sides.show(play, [Limit.parse("adaptive 10..100/s")], [])


def test_another_limit_rests_for_a_second_after_a_refusal() -> None:
    local = MemoryLimits({"api": "100/s"})
    assert answered(local, START, refused=True) == DEFAULT_STOP_SECONDS * SECOND
    assert answered(local, START) == 0
    assert local.learn([API], Feedback(refused=True, stop=3.0), START) == 3 * SECOND
