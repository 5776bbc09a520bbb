"""Agreement with figures from test suites of other projects; vectors/gcra.json names them.

Groups of kind "reservation" book slots for a cost above the capacity, which this package refuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from celery_throttle.algorithms.memory import MemoryLimits
from celery_throttle.errors import CostError
from celery_throttle.limiter.handle import LimitHandle
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import Limit
from celery_throttle.limits.rate import Rate
from celery_throttle.testing import ManualClock

GROUPS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "gcra.json").read_text(encoding="utf-8")
)["groups"]
START = 1_700_000_000_000_000


class Limited(Protocol):
    """One limit, on the server or in memory."""

    def try_acquire(self, cost: int) -> Decision: ...

    def acquire_up_to(self, most: int) -> Decision: ...

    def peek(self, cost: int) -> Decision: ...

    def reset(self) -> None: ...


@dataclass
class InMemory:
    local: MemoryLimits
    ref: LimitRef
    clock: ManualClock

    def try_acquire(self, cost: int) -> Decision:
        return self.local.acquire({self.ref: cost}, self.clock.now)

    def acquire_up_to(self, most: int) -> Decision:
        return self.local.acquire_up_to([self.ref], most, self.clock.now)

    def peek(self, cost: int) -> Decision:
        return self.local.peek({self.ref: cost}, self.clock.now)

    def reset(self) -> None:
        self.local.reset(self.ref)


Make = Callable[[Limit, ManualClock], Limited]


@pytest.fixture(params=["server", "memory"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    if request.param == "memory":
        yield lambda limit, clock: InMemory(
            MemoryLimits({"api": limit}), LimitRef("api", None), clock
        )
        return
    limiters: list[Limiter] = []
    url: str = request.getfixturevalue("redis_url")

    def on_server(limit: Limit, clock: ManualClock) -> LimitHandle:
        limiters.append(Limiter(url, {"api": limit}, clock=clock))
        return limiters[-1]["api"]

    yield on_server
    for limiter in limiters:
        limiter.store.close()


@dataclass(frozen=True)
class Expected:
    """The expected result of a step; ``slack``: microseconds by which the source may differ."""

    figures: dict[str, Any]
    slack: int
    zero_on_refusal: bool  # the source tells no remaining units when it refuses

    def check_time(self, name: str, seconds: float | None) -> None:
        if name not in self.figures:
            return
        if self.figures[name] is None:
            assert seconds == 0.0
        else:
            assert seconds is not None
            assert abs(round(seconds * 1_000_000) - self.figures[name]) <= self.slack

    def check(self, decision: Decision, cost: int) -> None:
        assert decision.allowed == self.figures.get("allowed", decision.allowed)
        self.check_time("retry_after_us", decision.retry_after)
        self.check_time("reset_after_us", decision.reset_after)
        if not decision.allowed and self.zero_on_refusal:
            assert decision.remaining < cost
        else:
            assert decision.remaining == self.figures.get("remaining", decision.remaining)


def take(api: Limited, limit: Limit, cost: int, expected: Expected) -> None:
    if cost <= limit.burst:
        expected.check(api.try_acquire(cost), cost)
        return
    # Others answer with a time, or with "never". Here it is an error, and takes nothing either.
    assert expected.figures["allowed"] is False
    before = api.peek(0)
    with pytest.raises(CostError):
        api.try_acquire(cost)
    assert api.peek(0) == before
    assert before.remaining == expected.figures["remaining"] or expected.zero_on_refusal
    expected.check_time("reset_after_us", before.reset_after)


def peek(api: Limited, _limit: Limit, cost: int, expected: Expected) -> None:
    assert cost == 0
    # Where a source tells a time at which it will no longer be empty, that is our peek of one unit.
    tells_time = expected.figures.get("retry_after_us") is not None
    assert api.peek(0).remaining == expected.figures["remaining"]
    expected.check(api.peek(1 if tells_time else 0), 1)


def take_upto(api: Limited, _limit: Limit, cost: int, expected: Expected) -> None:
    before = api.peek(0).remaining
    decision = api.acquire_up_to(cost)
    granted = expected.figures["granted"]
    assert decision.granted == granted == min(cost, before)
    assert decision.allowed == (granted > 0 or cost == 0)
    assert decision.remaining == api.peek(0).remaining == before - granted
    expected.check(decision, 1)


def reset(api: Limited, limit: Limit, _cost: int, _expected: Expected) -> None:
    api.reset()
    assert api.peek(0).remaining == limit.burst


STEPS = {"take": take, "peek": peek, "take_upto": take_upto, "reset": reset}


@pytest.mark.parametrize("algorithm", ["gcra", "token-bucket", "leaky-bucket"])
@pytest.mark.parametrize(
    "group", [pytest.param(one, id=one["id"]) for one in GROUPS if one["kind"] == "gcra"]
)
def test_the_group_agrees(make: Make, group: dict[str, Any], algorithm: str) -> None:
    about = group["limiter"]
    limit = Limit(Rate(about["count"], about["period_us"]), about["capacity"], algorithm)
    assert limit.ticks[0] == limit.ticks[1] * about["emission_us"]
    clock = ManualClock(START)
    api = make(limit, clock)
    for step in group["steps"]:
        clock.now = START + step["t_us"]
        slack = step.get("tolerance_us", group["tolerance_us"])
        zero = group["remaining_on_reject"] == "zero"
        for _ in range(step.get("repeat", 1)):
            STEPS[step["op"]](api, limit, step["cost"], Expected(step["expect"], slack, zero))


def test_every_group_is_known() -> None:
    kinds = [group["kind"] for group in GROUPS]
    assert (kinds.count("gcra"), kinds.count("reservation")) == (28, 5)
    assert len(kinds) == 33
