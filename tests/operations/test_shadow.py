"""Shadow limits: they count what they would refuse, and refuse nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle import Limit, Limiter, LimitError
from celery_throttle.limits.requirement import format_limits, parse_limits
from celery_throttle.store import definitions
from celery_throttle.testing import ManualClock
from tests.protocol import SECOND, Protocol

TRIED = [
    "3/s",
    "5/s burst 4",
    "10/10s burst 3 using token-bucket",
    "4/s burst 2 using leaky-bucket",
    "4/2s using fixed-window",
    "3/d using fixed-window in Europe/Berlin",
    "4/2s using sliding-log",
    "6/3s using sliding-window parts 3",
]


def refused(limiter: Limiter, name: str = "api") -> int:
    with redis.Redis.from_url(limiter.store.url) as client:
        return int(client.hget(limiter.keys.totals(name), "shadow_refused") or 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(TRIED),
    st.lists(st.tuples(st.integers(0, 800_000), st.integers(1, 5)), min_size=1, max_size=30),
    st.sampled_from([None, "key"]),
)
def test_it_counts_what_the_same_limit_enforced_refuses(
    redis_url: str, client: Any, tried: str, requests: Sequence[tuple[int, int]], key: str | None
) -> None:
    """Another limiter enforces it, for the requests that pass the enforced limit."""
    clock = ManualClock()
    limiter = Limiter(redis_url, {"api": ["9/s burst 6", f"{tried} shadow"]}, clock=clock)
    client.flushall()
    alone = Limiter("memory://", {"api": "9/s burst 6"}, clock=clock)
    other = Limiter("memory://", {"api": tried}, clock=clock)
    ref = "api" if key is None else ("api", key)
    burst, count = Limit.parse(tried).burst, 0
    for pause, cost in requests:
        clock.now += pause
        allowed = limiter[ref].try_acquire(cost)
        assert bool(allowed) == bool(alone[ref].try_acquire(cost))
        if allowed and (cost > burst or not other[ref].try_acquire(cost)):
            count += 1
    assert refused(limiter) == count


def test_alone_it_refuses_nothing(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"api": "1/d shadow"})
    assert all(limiter["api"].try_acquire() for _ in range(100))
    assert refused(limiter) == 99
    assert limiter["api"].status().clauses == ("1/d shadow",)


def test_a_request_that_is_refused_is_not_counted(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"api": ["2/d burst 2", "1/d shadow"]})
    assert [bool(limiter["api"].try_acquire()) for _ in range(4)] == [True, True, False, False]
    assert refused(limiter) == 1


@pytest.mark.parametrize("text", ["2/d burst 2 shadow", "2/d using sliding-log shadow"])
def test_a_reset_forgets_what_was_used_of_it(redis_url: str, text: str) -> None:
    limiter = Limiter(redis_url, {"api": text})
    for _ in range(2):
        assert all(limiter["api"].try_acquire() for _ in range(2))
        limiter["api"].reset()
    assert refused(limiter) == 0


def test_tasks_from_lines(redis_url: str) -> None:
    lines = Protocol(redis_url, {"api": ["10/s", "5/s shadow"]})
    lines.limiter["api"].try_acquire()
    for number in range(20):
        lines.park(f"t{number}", ["api"])
    claimed = 0
    for _ in range(20):
        lines.now += SECOND // 10
        claimed += len(lines.claim())
    assert claimed == 20
    assert refused(lines.limiter) == 10
    lines.close()


def test_tasks_that_start_at_once(redis_url: str) -> None:
    lines = Protocol(redis_url, {"api": "2/s shadow", "mail": ["9/s burst 9", "5/d shadow"]})
    for _ in range(3):
        lines.store.run(lines.gate_call([(["api"], 1), (["mail"], 1)]))
    assert refused(lines.limiter) == 2
    assert refused(lines.limiter, "mail") == 2
    lines.close()


def test_enforcing_it_keeps_what_the_other_limit_has_counted(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"api": ["100/d burst 100", "50/d burst 50 shadow"]})
    assert limiter["api"].try_acquire(80)
    limiter["api"].define("100/d burst 100")
    assert limiter["api"].peek().remaining == 20
    limiter["api"].define(["100/d burst 100", "90/d burst 90 shadow"])
    assert limiter["api"].peek().remaining == 20


def test_it_reads_back() -> None:
    limits = parse_limits(["100/s", "50/s shadow", "9/m burst 3 shadow"], "api")
    assert [str(limit) for limit in limits] == ["100/s"]
    assert format_limits(limits) == ["100/s", "50/s shadow", "9/m burst 3 shadow"]
    assert definitions.unpack(definitions.pack(limits, 0, "cap").text.encode()) == limits
    alone = parse_limits("9/s shadow", "api")
    assert format_limits(alone) == ["9/s shadow"]
    assert definitions.unpack(definitions.pack(alone, 0, "cap").text.encode()) == alone


@pytest.mark.parametrize(
    "text",
    ["10 at once shadow", "5/s using leaky-queue shadow", "adaptive 1..5/s shadow", "5/s shadow 3"],
)
def test_what_cannot_be_one(text: str) -> None:
    with pytest.raises(LimitError, match="shadow"):
        parse_limits(text, "api")
