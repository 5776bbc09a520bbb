"""The limiter on a real server: each operation, blocking and asyncio, and its data in Redis.

The time is a ManualClock's, so nothing here sleeps. Tests of expiry alone use the server's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import redis

from celery_throttle.errors import (
    ConfigurationError,
    CostError,
    KeyValueError,
    LimitError,
    LimitSyntaxError,
    LimitValueError,
    StoreError,
    StoreUnavailableError,
    Throttled,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.decision import Decision
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.grammar import ALGORITHMS
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.limit import MAX_BOOKING_US, Limit
from celery_throttle.operations.define import put_definitions
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.testing import ManualClock
from tests.ends import End, MakeEnd
from tests.protocol import START
from tests.servers.server import Server, free_port, wait_until

LIMITS = {"api": "10/s burst 5", "mail": "1/s", "bulk": "100/s burst 50 using token-bucket"}
METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")


@pytest.fixture
def limiter(any_server_url: str, clock: ManualClock, end_of: MakeEnd) -> End:
    """Blocking and asyncio, on each kind of server."""
    return end_of(Limiter(any_server_url, LIMITS, clock=clock))


@pytest.fixture
def plain(redis_url: str, clock: ManualClock) -> Iterator[Limiter]:
    """Blocking only, for what both share."""
    limiter = Limiter(redis_url, LIMITS, clock=clock)
    yield limiter
    limiter.store.close()


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of the server that the test's limiter uses."""
    names = ("any_server_url", "redis_url")
    url: str = request.getfixturevalue(next(n for n in names if n in request.fixturenames))
    with redis.Redis.from_url(url) as client:
        yield client


def contents(client: redis.Redis) -> dict[Any, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


def changes(client: redis.Redis) -> int:
    """Return the number of changes since the server started."""
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def limit_of(capacity: int, algorithm: str) -> str:
    """Meters emit a unit every 0.1 s; windows last a second."""
    if algorithm in METERS:
        return f"10/s burst {capacity} using {algorithm}"
    return f"{capacity}/s using {algorithm}"


def about(decision: Decision) -> tuple[bool, int, float | None, float]:
    return decision.allowed, decision.remaining, decision.retry_after, decision.reset_after


# What it decides


def test_acquire_takes_and_refuses(limiter: End, clock: ManualClock) -> None:
    api = limiter["api"]
    taken = api.try_acquire(4)
    assert about(taken) == (True, 1, 0.0, 0.4)
    assert (taken.burst, taken.limited_by, taken.granted, taken.delay) == (5, None, 4, 0.0)
    refused = api.try_acquire(3)
    assert about(refused) == (False, 1, 0.2, 0.4)
    assert (refused.burst, refused.limited_by, bool(refused)) == (5, "api", False)
    assert (refused.granted, refused.delay) == (0, 0.0)
    clock.advance(0.2)
    assert about(api.try_acquire(3)) == (True, 0, 0.0, 0.5)


def test_the_call_for_a_name_alone_is_built_once(plain: Limiter) -> None:
    assert plain.require("api", 1) is plain.require(["api"], 1)


def test_calls_that_wait_are_built_once(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"api": "1000/s burst 1000"})
    requirement = limiter.require("api", 1)
    for longest in (5.0, 5.0, 0.0, *range(1, 100), 5.0):
        limiter.take(requirement, longest)
    assert [longest for _, longest, _ in requirement.calls] == [5.0, 0.0, 1, 2]
    limiter.store.close()


def test_peek_takes_nothing(limiter: End, clock: ManualClock) -> None:
    api = limiter["api"]
    api.try_acquire(4)
    for _ in range(2):
        assert about(api.peek()) == (True, 1, 0.0, 0.4)
        assert about(api.peek(cost=2)) == (False, 1, 0.1, 0.4)
        assert about(api.peek(cost=0)) == (True, 1, 0.0, 0.4)
    clock.advance(10)
    assert about(api.peek(5)) == (True, 5, 0.0, 0.0)


@pytest.mark.parametrize("half", [0.5, Decimal("0.5"), Fraction(1, 2)])
def test_a_cost_may_be_a_fraction(limiter: End, clock: ManualClock, half: Any) -> None:
    api = limiter["api"]
    taken = api.try_acquire(half)
    assert about(taken) == (True, 4, 0.0, 0.05)  # of four and a half, four whole ones remain
    assert (taken.granted, type(taken.granted)) == (0.5, float)
    assert about(api.try_acquire(half)) == (True, 4, 0.0, 0.1)
    assert about(api.try_acquire(4)) == (True, 0, 0.0, 0.5)
    assert about(api.try_acquire(half)) == (False, 0, 0.05, 0.5)
    assert about(api.try_acquire(Fraction(1, 10_000))) == (False, 0, 0.00001, 0.5)
    clock.advance(0.05)
    assert api.peek(half)
    assert not api.peek(0.500001)
    assert api.try_acquire(0.2).reset_after == 0.47


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fractions_add_up_to_the_capacity_and_no_more(plain: Limiter, algorithm: str) -> None:
    plain["job"].define(limit_of(3, algorithm))
    job = plain["job"]
    costs: list[Any] = [0.1, Fraction(1, 4), Decimal("0.65"), 1, 1e-6, 0.999999]
    assert [job.try_acquire(cost, max_wait=None).allowed for cost in costs] == [True] * len(costs)
    assert not job.try_acquire(1e-6, max_wait=None)
    assert job.peek(0).remaining == 0


def test_each_limit_may_have_a_cost_of_its_own(limiter: End) -> None:
    both = ["api", limiter["bulk", 7]]
    assert about(limiter.try_acquire(both, {"bulk": 2.5})) == (True, 4, 0.0, 0.1)
    assert limiter["bulk", 7].peek(0).remaining == 47
    assert limiter.peek(both, {"api": 4, "bulk": 47.5})
    refused = limiter.try_acquire(both, {"api": 4, "bulk": 48})
    assert (refused.limited_by, refused.retry_after) == ("bulk", 0.005)
    with pytest.raises(LimitError, match=r"'mail'.*allowed: api, bulk"):
        limiter.try_acquire(both, {"mail": 2})
    with pytest.raises(CostError, match=r"cost 6 can never pass limit 'api'"):
        limiter.try_acquire(both, {"api": 6})
    assert limiter["api"].peek(0).remaining == 4


def test_acquire_up_to_takes_what_there_is(limiter: End, clock: ManualClock) -> None:
    api = limiter["api"]
    taken = api.acquire_up_to(3)
    assert (about(taken), taken.granted) == ((True, 2, 0.0, 0.3), 3)
    taken = api.acquire_up_to(3)
    assert (about(taken), taken.granted) == ((True, 0, 0.0, 0.5), 2)
    refused = api.acquire_up_to(3)
    assert (about(refused), refused.granted) == ((False, 0, 0.1, 0.5), 0)
    assert refused.limited_by == "api"
    clock.advance(0.15)
    assert api.acquire_up_to(0.25).granted == 0.25
    taken = api.acquire_up_to(3)  # whole units, if the cost is whole
    assert (about(taken), taken.granted) == ((True, 0, 0.0, 0.475), 1)
    assert api.acquire_up_to(2.5).granted == 0.25
    nothing = api.acquire_up_to(0)
    assert (about(nothing), nothing.granted) == ((True, 0, 0.0, 0.5), 0)
    clock.advance(10)
    assert api.acquire_up_to(10**400).granted == 5  # above the burst, and above any


def test_acquire_up_to_takes_the_same_from_each(limiter: End) -> None:
    limiter["bulk"].try_acquire(48)
    taken = limiter.acquire_up_to(["api", "bulk"], 5)
    assert (taken.granted, taken.remaining) == (2, 0)
    assert limiter["api"].peek(0).remaining == 3
    assert limiter.acquire_up_to(["api", "bulk"], 5).limited_by == "bulk"
    assert limiter["api"].peek(0).remaining == 3


def test_a_key_is_a_limit_of_its_own(limiter: End) -> None:
    assert limiter["mail", "a"].try_acquire()
    assert not limiter["mail", "a"].try_acquire()
    assert limiter["mail", "b"].try_acquire()
    assert limiter["mail"].try_acquire()
    assert not limiter["mail"].try_acquire()


def test_several_limits_take_together(limiter: End) -> None:
    assert about(limiter.try_acquire(["api", limiter["bulk", 7]], 5)) == (True, 0, 0.0, 0.5)
    assert limiter["api"].peek(0).remaining == 0
    assert limiter["bulk", 7].peek(0).remaining == 45
    assert limiter.peek("api", 0).remaining == 0  # one name, not its letters


def test_a_refusal_by_the_last_leaves_the_first_untouched(
    limiter: End, client: redis.Redis, clock: ManualClock
) -> None:
    three = ["bulk", limiter["api", "tenant"], "mail"]
    assert limiter.try_acquire(three)
    before = contents(client)
    totals = {b"{throttle}:totals:%b" % name for name in (b"bulk", b"api", b"mail")}
    definitions = {b"{throttle}:limits", b"{throttle}:names"}
    assert len(before) == 3 + len(totals | definitions)  # three states
    refused = limiter.try_acquire(three)
    assert (refused.limited_by, refused.retry_after) == ("mail", 1.0)
    after = contents(client)
    assert [key for key in before if before[key] != after[key]] == [b"{throttle}:totals:mail"]
    assert client.hget("{throttle}:totals:mail", "refused_limit") == b"1"
    assert before.keys() == after.keys()
    clock.advance(1)
    assert limiter.try_acquire(three)
    after = contents(client)
    assert {key for key in before if before[key] == after[key]} == definitions


def test_a_refusal_writes_nothing_but_a_counter_and_a_peek_nothing(
    limiter: End, client: redis.Redis
) -> None:
    limiter.try_acquire(["api", "mail"])
    limiter["bulk"].peek()
    before = changes(client), contents(client)
    limiter.peek(["bulk", "api"], 3)
    limiter.peek("mail")
    assert (changes(client), contents(client)) == before
    assert not limiter["mail"].try_acquire()
    assert not limiter.try_acquire(["bulk", "api", "mail"])
    for cost in (6, 1000):
        with pytest.raises(CostError):
            limiter["api"].try_acquire(cost)
    counted = 4 + 2  # the first of each kind also renews the expiry of the totals
    assert changes(client) == before[0] + counted
    after = contents(client)
    refused = {
        b"{throttle}:totals:mail": b"refused_limit",
        b"{throttle}:totals:api": b"refused_cost",
    }
    assert {key for key in after if before[1].get(key) != after[key]} == refused.keys()
    for key, counter in refused.items():
        assert client.hgetall(key) == {b"granted": b"1000000", counter: b"2"}


def test_a_refusal_tells_of_the_limit_that_binds(plain: Limiter) -> None:
    plain["fast"].define("1000/s burst 10")
    plain["slow"].define("1/s burst 20")
    plain["fast"].try_acquire(7)
    plain["slow"].try_acquire(15)
    refused = plain.try_acquire(["fast", "slow"], 10)
    assert (refused.limited_by, refused.burst, refused.remaining) == ("slow", 20, 5)
    assert (refused.retry_after, refused.reset_after) == (5.0, 15.0)


# Waiting


def test_a_wait_that_is_short_enough_passes(limiter: End, clock: ManualClock) -> None:
    mail = limiter["mail"]
    assert mail.acquire(max_wait=0)
    assert mail.acquire(max_wait=1.0)
    assert clock.now == START + 1_000_000
    assert limiter.acquire(["mail", "api"], max_wait=5)
    assert clock.now == START + 2_000_000


def test_a_wait_that_is_too_long_raises_at_once(limiter: End, clock: ManualClock) -> None:
    limiter["mail", "a"].try_acquire()
    for max_wait in (0, 0.999999):
        with pytest.raises(Throttled, match="mail") as caught:
            limiter["mail", "a"].acquire(max_wait=max_wait)
        assert (caught.value.limit, caught.value.key) == ("mail", "a")
        assert caught.value.retry_after == 1.0
    assert clock.now == START


def test_throttled_names_the_key_that_binds(plain: Limiter) -> None:
    plain["mail", "b"].try_acquire()
    with pytest.raises(Throttled) as caught:
        plain.acquire([plain["mail", "a"], plain["mail", "b"]], max_wait=0)
    assert caught.value.key == "b"


def test_who_loses_the_race_waits_again_but_no_longer_than_it_may(
    any_server_url: str, end_of: MakeEnd
) -> None:
    class Contended(ManualClock):
        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            while self.now <= START + 3_000_000 and not other["mail"].try_acquire():
                super().advance(0.001)

    clock = Contended(START)
    other = Limiter(any_server_url, LIMITS, clock=clock)
    other["mail"].try_acquire()
    mail = end_of(Limiter(any_server_url, LIMITS, clock=clock))["mail"]
    with pytest.raises(Throttled):
        mail.acquire(max_wait=2.5)
    assert clock.now == START + 2_000_000
    assert mail.acquire(max_wait=2.0)
    assert clock.now == START + 4_000_000


def test_a_leaky_queue_tells_when_what_it_took_may_start(
    any_server_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    queue = end_of(Limiter(any_server_url, {"q": "10/s burst 3 using leaky-queue"}, clock=clock))
    taken = [queue["q"].try_acquire(max_wait=None) for _ in range(3)]
    assert [(one.allowed, one.delay, one.remaining) for one in taken] == [
        (True, 0.0, 2),
        (True, 0.1, 1),
        (True, 0.2, 0),
    ]
    refused = queue["q"].try_acquire(max_wait=None)
    assert (about(refused), refused.delay) == ((False, 0, 0.1, 0.3), 0.0)
    clock.advance(0.05)
    assert queue["q"].try_acquire(max_wait=None).retry_after == 0.05
    clock.advance(0.05)
    taken = [
        queue["q"].peek(),
        queue["q"].try_acquire(max_wait=None),
        queue["q"].try_acquire(max_wait=None),
    ]
    assert [(one.allowed, one.delay) for one in taken] == [(True, 0.2), (True, 0.2), (False, 0.0)]
    clock.advance(10)
    assert queue["q"].try_acquire(2.5, max_wait=None).delay == 0.0
    assert queue["q"].try_acquire(0.5, max_wait=None).delay == 0.25
    clock.advance(0.2)
    assert queue.try_acquire(["q"], max_wait=None).delay == 0.1


def test_acquire_takes_or_raises(limiter: End, clock: ManualClock) -> None:
    limiter["mail"].acquire()
    refusals: list[Callable[[], Decision]] = [
        limiter["mail"].acquire,
        lambda: limiter.acquire(["api", "mail"]),
    ]
    for refuse in refusals:
        with pytest.raises(Throttled) as caught:
            refuse()
        assert (caught.value.limit, caught.value.key) == ("mail", None)
        assert caught.value.retry_after == limiter["mail"].try_acquire().retry_after
    assert limiter["api"].peek(0).remaining == 5
    limiter["mail", "a"].pause(30)
    with pytest.raises(Throttled) as caught:
        limiter.acquire(["api", limiter["mail", "a"]])
    assert (caught.value.key, caught.value.paused) == ("a", 30.0)
    assert clock.now == START


def test_try_acquire_waits_and_raises_nothing(limiter: End, clock: ManualClock) -> None:
    assert limiter["api"].try_acquire(5)
    assert limiter["api"].try_acquire(1, max_wait=0.1)
    assert clock.now >= START + 80_000
    refused = limiter.try_acquire(["api"], 4, max_wait=0.1)
    assert (refused.allowed, refused.granted, refused.limited_by) == (False, 0, "api")
    assert limiter["api"].peek(0).remaining == 0


def test_a_leaky_queue_starts_nothing_before_its_time(
    any_server_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    limiter = Limiter(any_server_url, {"q": "10/s burst 3 using leaky-queue"}, clock=clock)
    queue = end_of(limiter)["q"]
    assert queue.try_acquire().delay == 0.0
    refused = queue.try_acquire()
    assert (refused.allowed, refused.retry_after) == (False, 0.1)
    assert queue.try_acquire(max_wait=0.1)
    assert clock.now == START + 100_000


def test_a_leaky_queue_is_waited_for(
    any_server_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    limiter = Limiter(any_server_url, {"q": "10/s burst 3 using leaky-queue"}, clock=clock)
    queue = end_of(limiter)["q"]
    queue.try_acquire(max_wait=None)
    assert queue.acquire(max_wait=0.1).delay == 0.1
    assert clock.now == START + 100_000  # its delay has passed
    assert queue.acquire(max_wait=0.1).delay == 0.1
    assert clock.now == START + 200_000
    assert [queue.try_acquire(max_wait=None).delay for _ in range(2)] == [0.1, 0.2]
    assert queue.try_acquire(max_wait=None).retry_after == 0.1
    assert queue.acquire(max_wait=0.5)  # for room in the queue, then for its turn
    assert clock.now == START + 500_000


def test_a_leaky_queue_that_is_too_long_is_not_waited_for(
    any_server_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    limiter = Limiter(any_server_url, {"q": "10/s burst 9 using leaky-queue"}, clock=clock)
    queue = end_of(limiter)["q"]
    queue.try_acquire(3, max_wait=None)
    for max_wait in (0, 0.1, 0.2, 0.299999):
        with pytest.raises(Throttled) as caught:
            queue.acquire(max_wait=max_wait)
        # As long as it takes until somebody who waits so long would pass.
        assert caught.value.retry_after == pytest.approx(0.3 - max_wait)
        assert clock.now == START, max_wait
    assert queue.peek(0).remaining == 6
    assert queue.acquire(max_wait=0.3)
    assert clock.now == START + 300_000


def test_a_leaky_queue_refunds_nothing_before_a_start_that_others_wait_for(
    any_server_url: str, clock: ManualClock, end_of: MakeEnd
) -> None:
    limiter = Limiter(any_server_url, {"q": "1/s burst 50 using leaky-queue"}, clock=clock)
    queue = end_of(limiter)["q"]
    first = limiter["q"].reserve(10)
    assert queue.try_acquire(10, max_wait=None).delay == 10
    first.settle(1)
    assert queue.try_acquire(max_wait=None).delay == 20


# Pause and reset


def test_a_pause_stops_and_is_never_shortened(limiter: End, clock: ManualClock) -> None:
    api = limiter["api"]
    assert api.pause(30) == 30
    assert api.pause(10) == 30
    refused = api.try_acquire()
    assert (refused.allowed, refused.retry_after, refused.limited_by) == (False, 30.0, "api")
    assert api.peek().retry_after == 30.0
    clock.advance(29.999999)
    assert api.try_acquire().retry_after == 0.000001
    assert api.pause(2) == 2
    clock.advance(1)
    assert not api.try_acquire()
    clock.advance(1)
    assert api.try_acquire()


def test_a_pause_and_an_empty_limit_hold_both(limiter: End, clock: ManualClock) -> None:
    limiter["mail"].try_acquire()
    limiter["mail"].pause(0.5)
    assert limiter["mail"].try_acquire().retry_after == 1.0
    limiter["mail"].pause(1.5)
    assert limiter["mail"].try_acquire().retry_after == 1.5
    assert limiter["mail"].peek(0).reset_after == 1.5
    clock.advance(1.5)
    assert limiter["mail"].try_acquire()


def test_a_pause_of_the_limit_holds_every_key_and_that_of_a_key_only_itself(limiter: End) -> None:
    limiter["mail", "a"].pause(30)
    assert not limiter["mail", "a"].try_acquire()
    assert limiter["mail", "b"].try_acquire()
    assert limiter["mail"].try_acquire()
    limiter["api"].pause(30)
    assert limiter["api", "any"].try_acquire().retry_after == 30.0
    assert limiter.try_acquire(["bulk", limiter["api", "other"]]).limited_by == "api"
    assert limiter["bulk"].peek(0).remaining == 50


def test_nothing_remains_in_a_pause(plain: Limiter) -> None:
    plain["api"].pause(30)
    assert plain["api"].peek().remaining == 0


def test_a_reset_forgets_use_and_pause(limiter: End) -> None:
    limiter["mail"].try_acquire()
    limiter["mail", "a"].try_acquire()
    limiter["mail", "a"].pause(30)
    limiter["mail", "a"].reset()
    assert limiter["mail", "a"].try_acquire()
    assert not limiter["mail"].try_acquire()
    limiter["mail"].reset()
    assert about(limiter["mail"].peek(0)) == (True, 1, 0.0, 0.0)
    limiter["mail"].pause(30)
    limiter["mail", "a"].reset()
    assert not limiter["mail", "a"].try_acquire()  # the whole limit is still paused


def test_a_resume_lifts_a_pause_and_forgets_nothing(limiter: End) -> None:
    limiter["api"].define("100/d burst 100")
    assert limiter["api"].try_acquire(90)
    limiter["api"].pause(3600)
    assert limiter["api"].resume() is True
    assert limiter["api"].peek(0).remaining == 10
    assert limiter["api"].resume() is False


def test_a_pause_lasts_until_it_is_resumed(limiter: End, clock: ManualClock) -> None:
    api = limiter["api"]
    assert api.pause(None) == math.inf
    assert api.pause(10) == math.inf
    clock.advance(10 * 365 * 86_400)
    refused = api.peek()
    assert (refused.allowed, refused.retry_after, refused.limited_by) == (False, None, "api")
    assert (refused.paused, refused.reset_after, refused.remaining) == (math.inf, math.inf, 0)
    before = clock.now
    with pytest.raises(Throttled, match="paused until it is resumed") as caught:
        api.acquire(max_wait=1e9)
    assert (caught.value.retry_after, caught.value.paused) == (None, math.inf)
    assert clock.now == before  # it has failed at once
    assert api.learn(Feedback(refused=True, stop=5.0)) == math.inf
    api.resume()
    assert api.try_acquire()


def test_pauses_of_a_limit_and_of_a_key_are_lifted_each_by_itself(limiter: End) -> None:
    limiter["mail"].pause(None)
    limiter["mail", "a"].pause(None)
    limiter["mail"].resume()
    assert limiter["mail", "a"].peek().paused == math.inf
    assert limiter["mail", "b"].try_acquire()
    limiter["mail"].pause(None)
    assert limiter["mail", "a"].resume()
    assert not limiter["mail", "a"].peek()
    limiter["mail"].resume()
    assert limiter["mail", "a"].try_acquire()


def test_a_refusal_says_for_how_long_the_limit_is_paused(limiter: End, clock: ManualClock) -> None:
    mail = limiter["mail"]
    assert mail.try_acquire().paused == 0.0
    assert mail.try_acquire().paused == 0.0  # it is empty
    mail.pause(0.25)
    told = mail.try_acquire()
    assert (told.retry_after, told.paused) == (1.0, 0.25)
    mail.pause(3)
    told = mail.peek()
    assert (told.retry_after, told.paused) == (3.0, 3.0)
    with pytest.raises(Throttled, match=r"it is paused, and this could pass in 3 s") as caught:
        mail.acquire(max_wait=1)
    assert (caught.value.retry_after, caught.value.paused) == (3.0, 3.0)
    clock.advance(3)
    assert mail.try_acquire()


def test_what_an_answer_stopped_is_resumed(limiter: End) -> None:
    limiter["api"].learn(Feedback(refused=True, stop=600.0))
    assert limiter["api"].peek().paused == 600.0
    limiter["api"].resume()
    assert limiter["api"].try_acquire()


# Definitions


def test_a_definition_is_in_force_for_others_at_once(
    limiter: End, any_server_url: str, clock: ManualClock
) -> None:
    other = Limiter(any_server_url, LIMITS, clock=clock)
    assert other["api"].try_acquire(5)
    limiter["api"].define("1/s burst 9")
    assert about(other["api"].peek(0)) == (True, 4, 0.0, 5.0)  # units in use stay in use
    other.register()  # the code's own does not replace it
    assert other["api"].peek(0).burst == 9
    limiter["api"].undefine()
    assert about(other["api"].peek(0)) == (True, 0, 0.0, 0.5)
    limiter["new"].define(Limit.parse("1/s burst 3"))
    assert other["new"].peek(0).burst == 3
    limiter["new"].undefine()
    with pytest.raises(UnknownLimitError):
        other["new"].peek()
    other.store.close()


def test_a_key_may_have_a_definition_of_its_own(limiter: End) -> None:
    limiter["mail", "gold"].define("100/s burst 20")
    assert limiter["mail", "gold"].try_acquire(20)
    assert limiter["mail", "gold"].try_acquire().retry_after == 0.01
    assert limiter["mail", "plain"].peek().burst == limiter["mail"].peek().burst == 1
    limiter["mail"].define("1/s burst 2")
    assert limiter["mail", "gold"].peek(0).burst == 20
    limiter["mail", "gold"].undefine()
    assert limiter["mail", "gold"].peek(0).burst == 2
    limiter["mail", "never defined"].undefine()


def test_a_key_with_a_weight_alone_has_the_limits_of_its_name(limiter: End) -> None:
    limiter["bulk", "gold"].define(weight=3)
    limiter["api"].define(weight=2)
    assert limiter["bulk", "gold"].try_acquire(50)  # whole units: the fast path
    assert not limiter["bulk", "gold"].try_acquire()
    assert limiter["bulk", "plain"].try_acquire(0.5)
    assert limiter.try_acquire(["api", limiter["bulk", "silver"]], 5)
    assert limiter["bulk", "gold"].peek().burst == 50


# The state of the limit itself is converted when it is defined, that of a key when it is read.
parts = pytest.mark.parametrize("part", ["job", ("job", "key")])


@parts
@pytest.mark.parametrize("after", ALGORITHMS)
@pytest.mark.parametrize("before", ALGORITHMS)
def test_another_algorithm_keeps_the_units_in_use(
    plain: Limiter, part: Any, before: str, after: str
) -> None:
    plain["job"].define(limit_of(5, before))
    plain[part].try_acquire(4, max_wait=None)
    plain["job"].define(limit_of(5, after))
    peeked = plain[part].peek(2)
    if after in METERS:
        assert about(peeked) == (False, 1, 0.1, 0.4)
        return
    # One of the four must pass out of the window, which begins at this moment.
    wait, reset = {
        "fixed-window": (1.0, 1.0),
        "sliding-log": (1.0, 1.0),
        "sliding-window": (1.25, 2.0),  # the four are weighted with three quarters by then
    }[after]
    assert about(peeked) == (False, 1, wait, reset)
    assert plain[part].try_acquire(1, max_wait=None)
    assert not plain[part].try_acquire(1, max_wait=None)


@parts
def test_a_limit_made_smaller_keeps_its_promise(
    plain: Limiter, clock: ManualClock, part: Any
) -> None:
    plain["job"].define("100/s burst 100")
    plain[part].try_acquire(100)
    plain["job"].define("100/s")
    refused = plain[part].try_acquire()
    assert refused.retry_after is not None
    clock.advance(refused.retry_after)
    assert plain[part].try_acquire()


@parts
def test_a_limit_that_was_slow_for_a_while_pays_off_slowly_meanwhile(
    plain: Limiter, clock: ManualClock, part: Any
) -> None:
    plain["job"].define("100/s burst 100")
    plain[part].try_acquire(100)
    clock.now += 1
    plain["job"].define("1/h burst 100")
    clock.advance(10)
    plain["job"].define("100/s burst 100")
    assert plain[part].peek(0).remaining == 0


@parts
@pytest.mark.parametrize("after", ALGORITHMS)
@pytest.mark.parametrize("before", ALGORITHMS)
def test_what_changed_more_than_twice_is_not_paid_off_by_a_rate_of_the_past(
    plain: Limiter, clock: ManualClock, part: Any, before: str, after: str
) -> None:
    plain["job"].define(limit_of(5, before))
    plain[part].try_acquire(5)
    clock.now += 1
    plain["job"].define("5/h burst 5")
    clock.advance(10)
    plain["job"].define("4/h burst 4")
    clock.now += 1
    plain["job"].define(limit_of(5, after))
    assert plain[part].peek(0).remaining == (1 if part == "job" else 0)


@pytest.mark.parametrize("after", ALGORITHMS)
@pytest.mark.parametrize("before", ALGORITHMS)
def test_a_key_without_its_own_definition_any_more_keeps_the_units_in_use(
    plain: Limiter, clock: ManualClock, before: str, after: str
) -> None:
    plain["job"].define(limit_of(5, after))
    clock.advance(3600)
    plain["job", "gold"].define(limit_of(9, before))
    plain["job", "gold"].try_acquire(9)
    clock.now += 1
    plain["job", "gold"].undefine()
    assert plain["job", "gold"].peek(0).remaining == 0
    clock.now += 1
    assert not plain["job", "gold"].try_acquire()


def test_the_same_definition_again_changes_nothing(plain: Limiter, clock: ManualClock) -> None:
    plain["job"].define("3/s burst 3")
    for step in range(100):
        plain["job"].try_acquire()
        clock.now += step
        before = plain["job"].peek(0)
        plain["job"].define("3/s burst 3")
        assert plain["job"].peek(0) == before


def test_an_unknown_limit_is_named(limiter: End) -> None:
    for call in (limiter["nope"].acquire, limiter["nope"].peek, limiter["nope", "key"].acquire):
        with pytest.raises(UnknownLimitError, match=r"'nope'.*'api', 'bulk', 'mail'"):
            call()
    with pytest.raises(UnknownLimitError, match="'nope'"):
        limiter.try_acquire(["api", "nope"])
    assert limiter["api"].peek(0).remaining == 5


# Clocks


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_stands_still_gives_the_burst_and_no_more(
    plain: Limiter, algorithm: str
) -> None:
    meter = f"1000000/s burst 3 using {algorithm}"
    plain["job"].define(meter if algorithm in METERS else limit_of(3, algorithm))
    assert [bool(plain["job"].try_acquire(max_wait=None)) for _ in range(20)] == [True] * 3 + [
        False
    ] * 17


@pytest.mark.parametrize("back", [1, 100_000, 3_600_000_000, START])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_steps_back_gives_nothing_and_costs_little(
    plain: Limiter, clock: ManualClock, algorithm: str, back: int
) -> None:
    # Without the step: until one unit of two may pass, and how many do then.
    wait, passing = {
        "fixed-window": (1.0, 2),
        "sliding-log": (1.0, 2),
        "sliding-window": (1.5, 1),
    }.get(algorithm, (0.1, 1))
    plain["job"].define(limit_of(2, algorithm))
    plain["job"].try_acquire(2, max_wait=None)
    clock.now -= back
    refused = plain["job"].try_acquire(max_wait=None)
    assert refused.retry_after is not None
    assert not refused
    # A window still ends when it would have, but with the next one at the latest.
    late = min(back, 1_000_000 if algorithm == "fixed-window" else MAX_BOOKING_US)
    assert refused.retry_after <= wait + late / 1e6
    clock.advance(refused.retry_after)
    assert [plain["job"].try_acquire(max_wait=None).allowed for _ in range(3)].count(
        True
    ) == passing


@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        ("1/h burst 3", 2),
        ("1/120s", 1),
        ("7/day burst 7 using token-bucket", 5),
        ("3/s burst 300", 200),
        ("1/52w using token-bucket", 1),
        ("7/h burst 5 using leaky-bucket", 3),
        ("7/h burst 5 using leaky-queue", 3.5),
        ("7/h using fixed-window", 5),
        ("7/d using fixed-window in Asia/Kolkata", 5),
        ("1/month using fixed-window from first-request", 1),
        ("1/120s using sliding-log", 1),
        ("7/h using sliding-window parts 6", 3),
        ("1/h using sliding-window oldest dropped", 1),
    ],
)
def test_a_state_lasts_until_the_limit_is_full_again(
    any_server_url: str, client: redis.Redis, limit: str, cost: float
) -> None:
    limiter = Limiter(any_server_url, {"job": limit})
    for _ in range(1 + (cost == 1)):  # a refusal does not shorten it either
        reset = limiter["job", "k"].try_acquire(cost).reset_after
        lasts = client.pttl("{throttle}:state:job:k")
        # The server keeps whole milliseconds of its clock, so an expiry may be one later.
        assert -1 <= math.ceil(reset * 1000) - lasts <= 5000
        if "sliding-log" in limit:
            lasts = client.pttl("{throttle}:entries:job:k+1")
            assert -1 <= math.ceil(reset * 1000) - lasts <= 5000
    limiter["job", "k"].pause(50)
    assert 0 <= 50_000 - client.pttl("{throttle}:pause:job:k") <= 5000
    limiter.store.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_state_is_too_short_lived_to_be_kept(
    any_server_url: str, client: redis.Redis, algorithm: str
) -> None:
    """An expiry of 0 is an error in Redis, or deletes the state."""
    period = "s" if algorithm in METERS else "us"
    limiter = Limiter(any_server_url, {"job": f"1000000000/{period} using {algorithm}"})
    for number in range(200):
        assert limiter["job", number].try_acquire()
        assert limiter["job", number].pause(0) == 0
    assert all(client.pttl(key) <= 1 for key in client.scan_iter("{throttle}:[esp]*"))
    limiter.store.close()


# Wrong values


@pytest.mark.parametrize(
    "cost",
    [0, 0.0, -1, -0.5, -1e300, True, "1", None, math.nan, math.inf, Decimal("NaN"), 1j, b"1"],
)
def test_a_cost_that_is_no_cost(limiter: End, cost: Any) -> None:
    wrong = re.escape(f"cost {cost!r} ")
    with pytest.raises(CostError, match=wrong):
        limiter["api"].try_acquire(cost)
    if cost != 0:
        for call in (limiter["api"].peek, limiter["api"].acquire_up_to):
            with pytest.raises(CostError, match=wrong):
                call(cost)
    assert limiter["api"].peek(0).remaining == 5


@pytest.mark.parametrize(
    "cost",
    [
        pytest.param(cost, id=repr(cost)[:20])
        for cost in (
            6,
            5.000001,
            2**53 + 1,
            10**400,
            1e300,
            Decimal("1E+999999"),
            Fraction(10**400, 3),
            Fraction(2 * 10**400 + 1, 2),
        )
    ],
)
def test_a_cost_above_the_burst_can_never_pass(limiter: End, cost: Any) -> None:
    for call in (limiter["api"].acquire, limiter["api"].peek):
        with pytest.raises(CostError, match=r"never.*'api'.* 5\b"):
            call(cost)
    with pytest.raises(CostError, match="'api'"):
        limiter.try_acquire(["api", "bulk"], cost)
    assert limiter.peek(["bulk", "api"], 0).remaining == 5


def test_a_cost_too_long_to_be_written(plain: Limiter) -> None:
    with pytest.raises(CostError):
        plain["api"].try_acquire(10**5000)


@pytest.mark.parametrize("wait", [-1, -0.001, math.nan, math.inf, True, "1", 1e300])
def test_a_wait_that_is_no_time(limiter: End, wait: Any) -> None:
    with pytest.raises(LimitValueError, match=r"max_wait of .*seconds"):
        limiter["api"].acquire(max_wait=wait)
    with pytest.raises(LimitValueError, match=r"pause of .*seconds"):
        limiter["api"].pause(wait)
    assert limiter["api"].peek(0).remaining == 5


def test_a_key_that_looks_like_another_when_it_is_encoded(plain: Limiter) -> None:
    plain["mail"].define("1/h")
    assert plain.try_acquire([plain["mail", "a:b"]])
    for limit in (plain["mail", ("a", "b")], plain["mail", "a:b"]):
        seen = [limit.peek().allowed, limit.try_acquire().allowed]
        assert seen == [limit.ref.key == "a:b"] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda end: end["strip"].pause(30),
        lambda end: end["strip"].reset(),
        lambda end: end["strip"].undefine(),
        lambda end: end["strip", "x"].define("5/s"),
        lambda end: end["strip", "x"].undefine(),
    ],
)
def test_a_change_of_a_limit_that_nobody_defined(
    limiter: End, change: Callable[[End], object]
) -> None:
    with pytest.raises(UnknownLimitError, match="'strip' is not defined"):
        change(limiter)


def test_other_limits_that_were_put_in_force_meanwhile_stay(plain: Limiter) -> None:
    """A process that renews calendar windows sends those of the definitions that it read."""
    plain["api"].define("5/h burst 5")
    old = [Limit.parse("1/d using fixed-window in UTC")]
    plain.run_plan(
        put_definitions(plain.plans, "windows", [LimitRef("api", None)], [tuple(old)], 0)
    )
    assert plain["api"].try_acquire(5)


def test_references_that_name_no_limit(limiter: End) -> None:
    for item in ("", "a b", "{x}", b"api", None, 7, "é", "x" * 101):
        with pytest.raises(LimitSyntaxError, match="allowed"):
            limiter[item].try_acquire()
    for items in ([], ["api", "api"], [limiter["mail", 1], limiter["mail", "1"]]):
        with pytest.raises(LimitValueError):
            limiter.try_acquire(items)
    for call in (lambda: limiter.try_acquire(["mail:7"]), lambda: limiter["mail:7"]):
        with pytest.raises(LimitSyntaxError, match=r"write limiter\['mail', '7'\] for a key"):
            call()
    with pytest.raises(LimitValueError, match=r"write limiter\['mail', 7\] for a key"):
        limiter.try_acquire([("mail", 7)])
    with pytest.raises(KeyValueError, match="allowed"):
        limiter["mail", object()].try_acquire()
    for text in ("", "10", "0/s", "10/s burst 0"):
        with pytest.raises(LimitError):
            limiter["api"].define(text)


@pytest.mark.parametrize("item", [("mail",), ("mail", "a", "b"), ()])
def test_a_reference_is_a_name_or_a_pair(plain: Limiter, item: Any) -> None:
    with pytest.raises(ThrottleError, match="mail" if item else None):
        plain[item].try_acquire()


# Keys


def test_keys_of_any_content_never_reach_another_key(plain: Limiter, client: redis.Redis) -> None:
    values: list[Any] = [
        "a b", "a", "a:b", ("a", "b"), ("a", "b", ""), "", None, True, "true", "!true", 1, 1.0, -1,
        "{a}", "}{", "{throttle}", "*", "?", "[a-z]", "\n", "\r\n", "\0", "%00", "é", "e\u0301",
        "☃", "\ud800", "A", b"a", b"\xff", b"", "x" * 10_000, "x" * 10_001, b"x" * 10_000, ":",
        "::", "a:", ":a", "#", "limits", "mail", ("mail", "a"), "\\", "'", '"', "$(a)", "\u202e",
    ]  # fmt: skip
    for value in values:
        assert plain["mail", value].try_acquire(), value
        assert not plain["mail", value].try_acquire(), value
    states = client.keys("{throttle}:state:*")
    assert len(states) == len(values)
    assert max(map(len, states)) < 120
    plain["mail", "*"].reset()
    assert len(client.keys("{throttle}:state:*")) == len(values) - 1
    plain["mail", "a"].pause(30)
    plain["mail", "a:b"].define("1/s burst 9")
    limits = [plain["mail", value].peek(0).burst for value in values]
    assert limits.count(9) == 1
    assert not plain["mail", 1].try_acquire()
    assert not plain["mail", "1"].try_acquire()  # a number and its text are one key, as documented


def test_names_of_queues_never_make_two_waiting_lists_one() -> None:
    lists = [
        Keys().waiting_list(queue, LimitRef("mail", key))
        for queue, key in (("q", "a:b"), ("b:q", "a"), ("a:b:q", None), ("q", "a"), ("a:q", None))
    ]
    assert len(set(lists)) == len(lists)


# The server


@contextlib.contextmanager
def quick() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 10


def test_an_unreachable_server_is_named_without_its_password(end_of: MakeEnd) -> None:
    port = free_port()
    limiter = end_of(Limiter(f"redis://user:s3cret@127.0.0.1:{port}/0?password=s3cret", LIMITS))
    with quick(), pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{port}") as caught:
        limiter["api"].acquire(max_wait=60)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_server_that_does_not_answer_is_given_up(end_of: MakeEnd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        limiter = Limiter(url, LIMITS)
        limiter.store = Store(url, timeout=0.1)
        with quick(), pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1"):
            end_of(limiter)["api"].try_acquire()


def test_a_server_that_wants_another_password(redis_url: str, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(redis_url.replace("//", "//user:s3cret@"), LIMITS))
    with pytest.raises(StoreError) as caught:
        limiter["api"].try_acquire()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@localhost:port/0",
        "redis://:s3/cret@localhost/0",
        "redis://localhost:99999/0",
        "redis://[::1/0",
        "redis://localhost/0?socket_timeout=soon",
        "redis://localhost/0?nonsense=1",
        "localhost:6379",
        "",
        None,
    ],
)
def test_a_url_that_cannot_be_used_is_an_error_at_once(url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limiter(url, LIMITS)
    assert not any(secret in str(caught.value) for secret in ("s3", "cret"))
    if url == "localhost:6379":
        assert repr(url) in str(caught.value)


def test_scripts_are_loaded_again(limiter: End, client: redis.Redis) -> None:
    limiter["api"].try_acquire()
    client.script_flush()
    assert limiter["api"].try_acquire().remaining == 3
    client.script_flush()
    limiter["api"].pause(0)
    limiter["mail"].define("1/s burst 3")
    limiter["api"].reset()
    assert limiter.peek(["mail", "api"], 0).remaining == 3


def test_definitions_of_the_code_come_back(limiter: End, client: redis.Redis) -> None:
    limiter.try_acquire(["api", "mail"])
    limiter["mail"].define("1/s burst 9")
    client.flushall()
    assert about(limiter.try_acquire(["api", limiter["mail", 1]])) == (True, 0, 0.0, 1.0)
    assert sorted(client.hkeys("{throttle}:limits")) == [b"api", b"mail"]


def test_an_error_of_the_server_is_told_and_not_the_end(limiter: End, client: redis.Redis) -> None:
    client.hset("{throttle}:limits", "odd", "code nonsense 1 1 1")
    for _ in range(3):
        with pytest.raises(StoreError):
            limiter["odd"].try_acquire()
    assert limiter["api"].try_acquire()


@pytest.mark.thorough
def test_a_restarted_server_costs_no_error(own_server: Server, end_of: MakeEnd) -> None:
    limiter = end_of(Limiter(own_server.url, LIMITS))
    for _ in range(2):
        assert limiter.try_acquire(["api", "mail"])
        own_server.stop()
        own_server.start()
        if limiter._loop:
            limiter._loop.run_until_complete(asyncio.sleep(0))
    assert limiter.try_acquire(["api", "mail"])


@pytest.mark.thorough
def test_an_outage_ends_when_the_server_is_back(
    own_server: Server, end_of: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_throttle.store.breaker.RETRY_SECONDS", 0.0)  # see test_breaker.py
    limiter = end_of(Limiter(own_server.url, LIMITS))
    limiter["api"].try_acquire()
    own_server.stop()
    for _ in range(2):
        with quick(), pytest.raises(StoreUnavailableError):
            limiter["api"].try_acquire()
    own_server.start()
    assert limiter["api"].try_acquire()


# Processes, threads, tasks


def test_threads_share_a_limiter(redis_url: str, client: redis.Redis) -> None:
    limiter = Limiter(redis_url, {"job": "1/day burst 400"})
    others = len(client.client_list())
    remaining: list[int] = []

    def work() -> None:
        for _ in range(50):
            remaining.append(limiter["job"].try_acquire().remaining)  # noqa: PERF401 - as they come

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(remaining) == list(range(400))
    assert not limiter["job"].try_acquire()
    assert len(client.client_list()) <= others + 8
    limiter.store.close()


def test_a_fork_uses_a_connection_of_its_own(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"job": "1/day burst 400"})
    limiter["job"].try_acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # what goes wrong here is seen as a missing answer
        with contextlib.suppress(BaseException):
            answers = [limiter["job"].try_acquire().remaining for _ in range(100)]
            os.write(writing, " ".join(map(str, answers)).encode())
        os._exit(0)
    os.close(writing)
    own = [limiter["job"].try_acquire().remaining for _ in range(100)]
    with os.fdopen(reading) as answered:
        childs = [int(answer) for answer in answered.read().split()]
    os.waitpid(child, 0)
    assert sorted(own + childs) == list(range(199, 399))
    assert sorted(own, reverse=True) == own
    assert sorted(childs, reverse=True) == childs
    assert limiter["job"].try_acquire().remaining == 198  # the parent's connection still lives
    limiter.store.close()


async def test_tasks_share_a_limiter_and_one_may_be_cancelled(redis_url: str) -> None:
    limiter = Limiter(redis_url, {"job": "1/day burst 400"})
    await limiter["job"].atry_acquire()
    doomed = [asyncio.create_task(limiter["job"].atry_acquire()) for _ in range(20)]
    await asyncio.sleep(0)
    for task in doomed:
        task.cancel()
    ends = await asyncio.gather(*doomed, return_exceptions=True)
    # Before Python 3.12 asyncio.wait_for may swallow a cancellation, so not every one must show.
    assert sum(isinstance(end, asyncio.CancelledError) for end in ends) >= 15
    # No answer to a cancelled call reaches another one.
    decisions = await asyncio.gather(*(limiter["job"].atry_acquire() for _ in range(100)))
    remaining = sorted(decision.remaining for decision in decisions)
    assert remaining == list(range(remaining[0], remaining[0] + 100))
    assert remaining[-1] >= 400 - 1 - 20 - 1
    await limiter.store.aclose()


def test_event_loops_that_ended_leave_no_connections(redis_url: str, client: redis.Redis) -> None:
    limiter = Limiter(redis_url, {"job": "1/day burst 400"})
    gc.collect()
    others = len(client.client_list())
    for _ in range(10):
        asyncio.run(limiter["job"].atry_acquire())
    gc.collect()
    wait_until(lambda: len(client.client_list()) <= others + 1, "the end of their connections")


def test_another_prefix_is_another_world(plain: Limiter, client: redis.Redis) -> None:
    other = Limiter(client_url(client), LIMITS, prefix="{other}", clock=ManualClock(START))
    plain["mail"].try_acquire()
    assert other["mail"].try_acquire()
    assert {key.split(b":")[0] for key in client.scan_iter()} == {b"{throttle}", b"{other}"}
    other.store.close()


def client_url(client: redis.Redis) -> str:
    options = client.get_connection_kwargs()
    return f"redis://{options['host']}:{options['port']}/0"


def test_limits_that_are_no_dict_are_an_error() -> None:
    limits: Any = ["api"]
    with pytest.raises(LimitError, match=r"limits are \['api'\]; allowed: a dict of name to limit"):
        Limiter("memory://", limits)


@pytest.mark.parametrize("number", [0, -1, 1.5, math.nan, True, "1", None])
def test_a_page_has_a_whole_number_of_rows(plain: Limiter, number: Any) -> None:
    plain["api"].pause(1)
    for read in (plain.status, plain.changes, plain["api"].list_waiting):
        with pytest.raises(LimitValueError, match=r"most .*: whole numbers, 1 or more"):
            read(most=number)
    if number != 0:
        with pytest.raises(LimitValueError, match=r"first .*: whole numbers, 0 or more"):
            plain["api"].list_waiting(first=number)


@pytest.mark.parametrize("before", ["", "x", "1-1-1", 5, "\ud800"])
def test_changes_are_listed_before_the_id_of_a_change(plain: Limiter, before: Any) -> None:
    with pytest.raises(LimitValueError, match=r"before is .*: the id of a change"):
        plain.changes(before=before)
