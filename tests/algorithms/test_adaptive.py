"""Adaptive limits, with an API that changes its own limit without notice."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from celery_throttle.algorithms.adaptive import (
    AGAIN_US,
    KEPT_PERCENT,
    KEPT_PERCENT_AGAIN,
    Adaptive,
)
from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.algorithms.pauses import MAX_STOP_US, ROW_MEMORY_US
from celery_throttle.algorithms.slots import Slots
from celery_throttle.limits.cost import MILLION
from celery_throttle.limits.feedback import (
    ADAPTIVE_STOP_SECONDS,
    DEFAULT_STOP_SECONDS,
    Feedback,
)
from celery_throttle.limits.grammar import CONCURRENCY
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.store.script import pack_command
from tests.algorithms.limits import SECOND
from tests.algorithms.properties import Property, Sides, shown
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
        tells: whether its answers tell this limit.
        answers: "counted": by the limit; or "overloaded", "revoked" (401), or "closed": it refuses
            all until ``opens``, and says until when.
    """

    local: MemoryLimits
    latency: int
    clients: int
    evenly: bool
    limit: int = 100
    tells: bool = False
    answers: str = "counted"
    opens: int = 0
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
        if self.answers != "counted":
            return self.answers == "revoked"
        if self.evenly:
            admitted = self._till - at <= SECOND // 10
            self._till = max(self._till, at) + admitted * (SECOND // self.limit)
            return admitted
        second, count = self._window
        self._window = at // SECOND, (count if second == at // SECOND else 0) + 1
        return self._window[1] <= self.limit

    def _hear(self, number: int, *, ok: bool) -> tuple[int, int, bool | None]:
        overloaded = not ok and self.answers == "overloaded"
        feedback = Feedback(
            refused=not ok and not overloaded,
            overloaded=overloaded,
            stop=(self.opens - self._now) / SECOND if not ok and self.answers == "closed" else None,
            limit=self.limit if self.tells else None,
            took=None if self.answers == "revoked" else self.latency / SECOND,
        )
        rest = self.local.learn({API: feedback}, self._now)
        self._paused = max(self._paused, self._now + rest)
        self.refused += not ok
        self.shares.append(share_of(self.local))
        return self._now, number, None


def share_of(local: MemoryLimits) -> int:
    (state,) = local._states[API]
    assert isinstance(state, Adaptive)
    return state.rate.share


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize("highest", [100, 1000])
def test_an_unknown_limit_that_answers_tell(highest: int) -> None:
    """The rate is that of the API from the first answer on, and when it changes."""
    local = MemoryLimits({"api": f"adaptive 10..{highest}/s"})
    site = Site(local, 50_000, clients=20, evenly=True, limit=80, tells=True)
    for limit in (80, 40, 90):
        site.limit = limit
        site.play(60)
        assert site.refused <= 0.01 * site.sent
        assert site.sent - site.refused >= 0.95 * 60 * limit


def test_an_unknown_limit_that_no_answer_tells() -> None:
    """At most 2% of the requests are refused, from the first minute on."""
    local = MemoryLimits({"api": "adaptive 10..1000/s"})
    site = Site(local, 20_000, clients=4, evenly=True)
    for _ in range(2):
        site.play(60)
        assert site.refused <= 0.02 * site.sent
        assert site.sent - site.refused >= 0.9 * 60 * 100


@pytest.mark.thorough
@pytest.mark.parametrize("tells", [True, False], ids=["told", "untold"])
@pytest.mark.parametrize("trouble", ["halved", "overloaded", "revoked", "closed"])
def test_after_trouble_the_quota_is_used_again_within_five_seconds(
    trouble: str, *, tells: bool
) -> None:
    """Of 5,000 requests at most 1% are refused, or fail for an overload."""
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    site = Site(local, 30_000, clients=6, evenly=True, tells=tells)
    site.play(15)
    sent, refused = site.sent, site.refused
    if trouble == "halved":
        site.limit = 50
    else:
        site.answers, site.opens = trouble, site._now + 20 * SECOND
    site.play(20)
    sent, refused, site.answers = sent + site.sent, refused + site.refused, "counted"
    site.play(5)
    sent, refused = sent + site.sent, refused + site.refused
    site.play(25)
    assert site.sent - site.refused >= 0.9 * 25 * site.limit
    assert sent + site.sent >= (3000 if trouble == "halved" else 4000)
    assert refused + site.refused <= 0.01 * (sent + site.sent)


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
    return local.learn({API: Feedback(refused=refused, took=took)}, at)


STOP_US = int(ADAPTIVE_STOP_SECONDS * SECOND)


def test_what_was_sent_before_the_last_fall_says_nothing_new() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    assert answered(local, START, refused=True) == STOP_US
    assert share_of(local) == KEPT_PERCENT * 10_000
    for refused in (True, False):
        assert answered(local, START + SECOND, refused=refused, took=1.1) == 0
    assert share_of(local) == KEPT_PERCENT * 10_000


def test_refusals_in_a_row_stop_it_for_longer_and_longer() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    at, stops = START, []
    for _ in range(60):
        stops.append(answered(local, at, refused=True))
        at += stops[-1] + 1  # the next request goes out when the pause ends
    assert stops[:4] == [STOP_US, 2 * STOP_US, 4 * STOP_US, 8 * STOP_US]
    for before, after in pairwise(stops[4:]):
        assert min(MAX_STOP_US, before * 1.09) <= after <= min(MAX_STOP_US, before * 1.3)
    assert stops[-1] == MAX_STOP_US
    answered(local, at)
    assert answered(local, at + 1, refused=True) == STOP_US


@pytest.mark.parametrize("feedback", [Feedback(refused=True), Feedback(overloaded=True)], ids=str)
def test_any_limit_stops_for_longer_and_longer(feedback: Feedback) -> None:
    local = MemoryLimits({"api": "100/s"})
    first = local.learn({API: feedback}, START)
    assert first == DEFAULT_STOP_SECONDS * SECOND
    second = local.learn({API: feedback}, START + first)
    assert 1.1 * first <= second <= 1.3 * first
    # Answers to requests that were sent together count once.
    late = replace(feedback, took=0.5)
    assert local.learn({API: late}, START + first + 1000) == second - 1000
    # A row is forgotten.
    after = START + first + second + ROW_MEMORY_US
    assert local.learn({API: feedback}, after) == first


def test_a_success_of_a_request_sent_before_the_pause_does_not_end_a_row() -> None:
    local = MemoryLimits({"api": "100/s"})
    local.learn({API: Feedback(refused=True)}, START)
    local.learn({API: Feedback(took=0.5)}, START + 1000)
    assert local.learn({API: Feedback(refused=True)}, START + SECOND) > SECOND


def test_an_overload_and_a_failure_keep_the_rate() -> None:
    local = MemoryLimits({"api": "adaptive 10..100/s"})
    answered(local, START, refused=True)
    share, at = share_of(local), START + SECOND
    assert local.learn({API: Feedback(overloaded=True)}, at) >= SECOND
    assert local.learn({API: Feedback(took=None)}, at + SECOND) == 0
    assert share_of(local) == share


def test_the_limit_that_an_api_tells_is_the_rate_at_once() -> None:
    """Within the range; refusals lower the rate below it, and it never exceeds it."""
    local = MemoryLimits({"api": "adaptive 10..100/s"})

    def tells(limit: int, at: int, period: float | None = None, took: float = 0.0) -> int:
        feedback = Feedback(limit=limit, period=period, took=took)
        local.learn({API: feedback}, START + at)
        return share_of(local)

    assert tells(3000, 0, period=60.0) == 500_000
    answered(local, START + SECOND, refused=True)
    assert share_of(local) == 500_000 * KEPT_PERCENT_AGAIN // 100
    for second in range(2, 30):
        assert tells(50, second * SECOND) <= 500_000
    assert share_of(local) == 500_000
    assert tells(80, 31 * SECOND) == 800_000
    assert tells(50, 31 * SECOND, took=0.1) == 800_000  # it was sent before the change
    assert tells(1, 32 * SECOND) == 100_000
    assert tells(1000, 33 * SECOND) == 1_000_000


def test_when_an_api_first_tells_its_limit_units_drained_too_fast_are_in_use_again(
    sides: Sides,
) -> None:
    """Up to twice the burst; a change of the API's limit keeps the units in use."""

    def remaining(limits: dict[int, int]) -> Property:
        def play(side: Side, _trace: list[Step]) -> Playing[None]:
            yield from side.acquire(20 * MILLION)
            for after, limit in limits.items():
                side.advance(after)
                feedback = Feedback(limit=limit, took=0.0)
                yield from side.plans.learn({side.ref: feedback})
                side.local.learn({side.ref: feedback}, side.clock.now)
            decision = yield from side.acquire(10 * MILLION)
            waits.append(round((decision.retry_after or 0) * 1000))

        return play

    waits: list[int] = []
    limit = [Limit.parse("adaptive 10..100/s burst 20")]
    sides.show(remaining({100_000: 10}), limit, [])
    sides.show(remaining({100_000: 50, 1: 10}), limit, [])
    assert waits == [900, 500]


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
    assert share_of(local) == low + low // 100


@shown(400, ["adaptive", CONCURRENCY], learning)
def test_its_bounds_are_never_left(side: Side, trace: list[Step]) -> Playing[None]:
    """Whatever the feedback; `test_bounds` shows that no more is admitted than at the highest."""
    for step in trace:
        yield from side.play(step)
        (state,) = side.local._states.get(side.ref, (None,))
        if state is None:
            continue
        if isinstance(state, Slots):
            assert (
                (side.limit.lowest or side.limit.burst)
                <= state.in_force(side.limit)
                <= side.limit.burst
            )
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
    assert local.learn({API: Feedback(refused=True, stop=3.0)}, START) == 3 * SECOND
