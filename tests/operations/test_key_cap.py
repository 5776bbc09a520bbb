"""The cap on keys in use (`max-keys`), for callers outside tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_throttle.errors import LimitError, LimitValueError, Throttled
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.requirement import LimitsLike, parse_limits
from celery_throttle.testing import ManualClock
from tests.ends import End, MakeEnd
from tests.protocol import SECOND, START

LIMITS: Mapping[str, LimitsLike] = {
    "mail": "1/s burst 2 max-keys 3",
    "day": "5/d using fixed-window in UTC max-keys 2",
    "log": "5/10s using sliding-log max-keys 2",
    "both": ["1/s max-keys 5", "9/h using sliding-window max-keys 2"],
    "slots": "2 at once max-keys 2",
    "free": "10/s burst 10",
}
KEYED = ("mail", "day", "log", "both")


@pytest.fixture
def limiter(any_server_url: str, clock: ManualClock, end_of: MakeEnd) -> End:
    """Blocking and asyncio, on each kind of server."""
    return end_of(Limiter(any_server_url, LIMITS, clock=clock))


@pytest.fixture
def plain(redis_url: str, clock: ManualClock) -> Iterator[Limiter]:
    limiter = Limiter(redis_url, LIMITS, clock=clock)
    yield limiter
    limiter.store.close()


# Keys: who is refused, and for how long.


def test_a_key_more_than_there_may_be_is_refused_until_one_is_forgotten(
    limiter: End, clock: ManualClock
) -> None:
    assert limiter["mail", "a"].try_acquire(cost=2)
    clock.advance(0.5)
    assert limiter["mail", "b"].try_acquire()
    assert limiter["mail", "c"].try_acquire()
    refused = limiter["mail", "d"].try_acquire()
    assert (refused.allowed, refused.limited_by, refused.granted) == (False, "mail", 0)
    assert (refused.burst, refused.remaining) == (2, 0)
    assert (refused.retry_after, refused.reset_after) == (1.0, 1.0)  # until b's and c's are over
    assert limiter["mail", "d"].peek() == refused
    assert limiter["mail", "d"].acquire_up_to(5) == refused
    clock.advance(0.999999)
    assert not limiter["mail", "d"].try_acquire()
    clock.advance(0.000001)
    assert limiter["mail", "d"].try_acquire()


def test_keys_in_use_go_on(limiter: End, clock: ManualClock) -> None:
    for key in "abc":
        assert limiter["mail", key].try_acquire()
    for _ in range(5):
        assert not limiter["mail", "d"].try_acquire()
        for key in "abc":
            assert limiter["mail", key].try_acquire()
        clock.advance(1.0)


@pytest.mark.parametrize("name", KEYED)
def test_each_algorithm_forgets_a_key_when_nothing_of_it_is_in_use(
    limiter: End, clock: ManualClock, name: str
) -> None:
    resets = [limiter[name, key].try_acquire().reset_after for key in "ab"]
    if name == "mail":
        limiter[name, "c"].try_acquire()
    refused = limiter[name, "z"].try_acquire()
    assert refused.retry_after == min(resets)
    clock.advance(min(resets))
    assert limiter[name, "z"].try_acquire()


def test_the_limit_itself_is_no_key(limiter: End) -> None:
    for key in "abc":
        limiter["mail", key].try_acquire()
    assert limiter["mail"].try_acquire()
    assert not limiter["mail", "d"].try_acquire()


def test_other_limits_are_not_touched_by_a_refusal(limiter: End) -> None:
    for key in "abc":
        limiter["mail", key].try_acquire()
    refused = limiter.try_acquire(["free", limiter["mail", "d"]])
    assert (refused.allowed, refused.limited_by) == (False, "mail")
    assert limiter["free"].peek().remaining == 10
    assert limiter.try_acquire(["free", limiter["mail", "a"]])


def test_several_keys_at_once_need_room_for_each(limiter: End, clock: ManualClock) -> None:
    assert limiter["mail", "a"].try_acquire(cost=2)
    clock.advance(0.5)
    assert limiter["mail", "b"].try_acquire()
    refused = limiter.try_acquire([limiter["mail", "c"], limiter["mail", "d"]])
    assert (refused.allowed, refused.retry_after) == (False, 1.0)
    assert limiter.try_acquire([limiter["mail", "c"], limiter["mail", "b"]])
    assert limiter["mail", "d"].peek().retry_after == 1.0


def test_more_keys_at_once_than_there_may_ever_be_are_an_error(limiter: End) -> None:
    keys = [limiter["mail", key] for key in "abcd"]
    for method in (limiter.acquire, limiter.peek, limiter.acquire_up_to, limiter.reserve):
        with pytest.raises(LimitValueError, match=r"'mail' .* allowed: at most 3 \(max-keys\)"):
            method(keys, 1)


def test_a_caller_that_waits_has_the_first_place(limiter: End, clock: ManualClock) -> None:
    for key in "abc":
        limiter["mail", key].try_acquire()
    with pytest.raises(Throttled) as caught:
        limiter["mail", "d"].acquire(max_wait=0.5)
    error = caught.value
    assert (error.limit, error.key, error.retry_after) == ("mail", "d", 1.0)
    with pytest.raises(Throttled):
        limiter["mail", "d"].reserve(1)
    assert limiter["mail", "d"].acquire(max_wait=1.0)
    assert clock.now == START + SECOND


def test_what_is_settled_to_nothing_frees_its_key(limiter: End) -> None:
    reservations = [limiter["mail", key].reserve(2) for key in "abc"]
    assert not limiter["mail", "d"].try_acquire()
    End(reservations[1], limiter._loop).settle(0)
    assert limiter["mail", "d"].try_acquire()


def test_a_reset_frees_its_key(limiter: End) -> None:
    for key in "abc":
        limiter["mail", key].try_acquire()
    limiter["mail", "b"].reset()
    assert limiter["mail", "d"].try_acquire()
    assert not limiter["mail", "b"].try_acquire()


def test_the_keys_of_slots(limiter: End, clock: ManualClock) -> None:
    with ExitStack() as held:
        held.enter_context(limiter.hold(limiter["slots", "a"].slot(lease=60.0)))
        clock.advance(20.0)
        held.enter_context(limiter.hold(limiter["slots", "b"].slot(lease=30.0)))
        held.enter_context(limiter.hold(limiter["slots", "b"].slot(lease=10.0)))
        with pytest.raises(Throttled) as caught:
            held.enter_context(limiter.hold(limiter["slots", "c"].slot()))
        assert (caught.value.key, caught.value.retry_after) == ("c", 30.0)
        assert limiter["slots", "a"].peek().remaining == 1
        limiter["slots", "a"].reset()  # what is held stays held
        assert not limiter["slots", "c"].peek()


def test_leases_that_are_renewed_keep_their_key(plain: Limiter, clock: ManualClock) -> None:
    with ExitStack() as stack:
        stack.enter_context(plain["slots", "a"].slot(lease=10.0))
        slot = plain["slots", "b"].slot(lease=10.0)
        stack.enter_context(slot)
        clock.advance(8.0)
        plain.run_plan(plain.plans.renew([(slot._requirement.refs[0], slot._holder)], 10.0))
        assert plain["slots", "c"].peek().retry_after == 2.0
        clock.advance(2.0)
        assert plain["slots", "c"].peek()  # the other's lease has run out
        stack.enter_context(plain["slots", "c"].slot())
        assert plain["slots", "d"].peek().retry_after == 8.0


# Keys: what a change of the bound does.


def test_the_strictest_of_several_limits_counts(limiter: End) -> None:
    assert limiter["both", "a"].try_acquire()
    assert limiter["both", "b"].try_acquire()
    assert not limiter["both", "c"].try_acquire()


@pytest.mark.parametrize("name", [*KEYED, "free"])
def test_a_bound_alone_changes_nothing_that_is_in_use(
    limiter: End, clock: ManualClock, name: str
) -> None:
    bare = [str(replace(limit, max_keys=None)) for limit in parse_limits(LIMITS[name], name)]
    limiter[name].define(bare)
    limiter[name, "a"].try_acquire(cost=2 if name == "free" else 1)
    before = limiter[name, "a"].peek()
    clock.advance(0.0625)
    changed = [f"{text} max-keys 7 max-waiting 5 outage open" for text in bare]
    for limits in (changed, changed, bare, [f"{bare[0]} max-keys 3", *bare[1:]]):
        limiter[name].define(limits)
        after = limiter[name, "a"].peek()
        assert after.remaining == before.remaining
        assert after.reset_after == pytest.approx(before.reset_after - 0.0625, abs=2e-6)


def test_a_bound_is_in_force_at_once(limiter: End, clock: ManualClock) -> None:
    for key in "abc":
        limiter["mail", key].try_acquire()
    limiter["mail"].define("1/s burst 2 max-keys 4")
    assert limiter["mail", "d"].try_acquire()
    limiter["mail"].define("1/s burst 2 max-keys 1")
    assert not limiter["mail", "e"].try_acquire()
    for key in "abcd":
        assert limiter["mail", key].try_acquire()
    assert limiter["mail", "e"].try_acquire().retry_after == 2.0
    clock.advance(2.0)
    assert limiter["mail", "e"].try_acquire()
    limiter["mail"].define("1/s burst 2")
    for number in range(10):
        assert limiter["mail", number].try_acquire()
    limiter["mail"].undefine()


def test_keys_in_use_before_there_was_a_bound_go_on_and_count_when_used(limiter: End) -> None:
    for key in "abcd":
        limiter["free", key].try_acquire(cost=5)
    limiter["free"].define("10/s burst 10 max-keys 2")
    for key in "abc":
        assert limiter["free", key].try_acquire()
    assert not limiter["free", "e"].try_acquire()
    assert limiter["free", "d"].try_acquire()


def test_a_key_with_limits_of_its_own_is_bound_by_these_alone(limiter: End) -> None:
    limiter["mail", "a"].try_acquire()
    limiter["mail", "gold"].define("100/s burst 9")
    assert limiter["mail", "gold"].try_acquire()
    for key in "bc":
        assert limiter["mail", key].try_acquire()
    assert not limiter["mail", "d"].try_acquire()
    assert limiter["mail", "gold"].try_acquire()
    limiter["mail", "other"].define("1/s max-keys 1")
    assert not limiter["mail", "other"].try_acquire()


@pytest.mark.parametrize("text", ["1/s max-keys 0", "1/s outage maybe", "2 at once max-waiting x"])
def test_a_bound_that_cannot_be(limiter: End, text: str) -> None:
    with pytest.raises(LimitError, match="allowed:"):
        limiter["mail"].define(text)


# Keys: what is kept.


def test_a_bomb_of_keys_leaves_no_more_than_there_may_be(
    plain: Limiter, client: redis.Redis, clock: ManualClock
) -> None:
    plain["mail"].define("1/s max-keys 50")
    allowed = 0
    for number in range(3_000):
        allowed += bool(plain["mail", f"key {number}"].try_acquire())
        clock.advance(0.001)
    # Fifty at once, and as many again each second.
    assert allowed == 150
    clock.advance(10)
    assert plain["mail", "last"].try_acquire()
    assert client.zcard("{throttle}:key-cap:mail") == 1
    of_all_keys = 5  # the key cap, the totals, the definitions, names and changes
    assert client.dbsize() <= 151 + of_all_keys  # with the last key


def test_the_work_does_not_grow_with_the_keys(plain: Limiter, client: redis.Redis) -> None:
    plain["mail"].define("1/h max-keys 1000")
    calls = []
    for number in range(1_100):
        if number in (10, 999, 1_099):
            client.config_resetstat()
        plain["mail", str(number)].try_acquire()
        if number in (10, 999, 1_099):
            stats: Any = client.info("commandstats")
            calls.append(sum(about["calls"] for about in stats.values()))
    assert calls[0] == calls[1] >= calls[2]


def test_what_counts_keys_expires_with_the_last_of_them(redis_url: str, client: Any) -> None:
    limiter = Limiter(redis_url, {"mail": "10/s burst 10 max-keys 3"})
    limiter["mail", "a"].try_acquire(cost=9)
    limiter["mail", "b"].try_acquire(cost=1)
    left = client.pttl("{throttle}:key-cap:mail")
    assert isinstance(left, int)
    assert 100 < left <= 900
    limiter.store.close()


def test_without_a_bound_nothing_is_counted(plain: Limiter, client: redis.Redis) -> None:
    plain["free", "a"].try_acquire()
    plain["mail"].try_acquire()
    assert not client.keys("{throttle}:key-cap:*")
