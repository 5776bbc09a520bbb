"""Reservations and slots: settle, release and renew."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pytest
import redis

from celery_throttle.errors import (
    CostError,
    LimitError,
    LimitValueError,
    Throttled,
    ThrottleError,
    UnknownLimitError,
)
from celery_throttle.limiter import lease_renewer
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.grammar import ALGORITHMS
from celery_throttle.limits.key import LimitRef
from celery_throttle.store.script import Call
from celery_throttle.testing import ManualClock
from tests.ends import End, MakeEnd
from tests.protocol import START

LIMITS = {
    "tokens": "10/s burst 100",
    "api": "10/s burst 5",
    "one": "1 at once",
    "two": "2 at once",
    "github": ["5/h using fixed-window", "2 at once"],
    "logged": ["5/h using sliding-log", "2 at once"],
}
METERS = ("gcra", "token-bucket", "leaky-bucket", "leaky-queue")

#: Those in which what was taken may be used at once.
PROMPT = tuple(algorithm for algorithm in ALGORITHMS if algorithm != "leaky-queue")


def ten(period: str, algorithm: str) -> str:
    """Ten units per period, all at once."""
    return f"10/{period}{' burst 10' if algorithm in METERS else ''} using {algorithm}"


@pytest.fixture
def limiter(any_server_url: str, clock: ManualClock, end_of: MakeEnd) -> End:
    """Blocking and asyncio, on each kind of server."""
    return end_of(Limiter(any_server_url, LIMITS, clock=clock))


@pytest.fixture
def plain(redis_url: str, clock: ManualClock, end_of: MakeEnd) -> End:
    """Blocking and asyncio."""
    return end_of(Limiter(redis_url, LIMITS, clock=clock))


def inner(reservation: Any, end: End) -> End:
    """Settles a reservation."""
    return End(reservation, end._loop)


# Reservations


def test_what_was_reserved_too_much_is_given_back(limiter: End, clock: ManualClock) -> None:
    tokens = limiter["tokens"]
    reservation = tokens.reserve(60)
    decision = reservation.decision
    assert (decision.allowed, decision.granted, decision.remaining) == (True, 60, 40)
    clock.advance(1)
    inner(reservation, limiter).settle(25.5)
    peeked = tokens.peek(0)
    assert (peeked.remaining, peeked.reset_after) == (84, 1.55)


def test_what_was_reserved_too_little_is_owed(limiter: End, clock: ManualClock) -> None:
    tokens = limiter["tokens"]
    reservation = tokens.reserve(60)
    inner(reservation, limiter).settle(150)
    assert tokens.peek(0).remaining == 0
    assert tokens.peek(0).reset_after == 15
    assert tokens.try_acquire(1).retry_after == 5.1  # once the debt of 50 is paid off
    clock.advance(5.1)
    assert tokens.try_acquire(1)


def test_what_was_reserved_rightly_stands(plain: End, client: redis.Redis) -> None:
    tokens = plain["tokens"]
    reservation = tokens.reserve(60)
    before = client.dump("{throttle}:state:tokens")
    inner(reservation, plain).settle(60)
    assert client.dump("{throttle}:state:tokens") == before
    assert tokens.peek(0).remaining == 40


def test_all_of_it_may_be_given_back(plain: End) -> None:
    for nothing in (0, 0.0, Decimal(0)):
        inner(plain["tokens"].reserve(60), plain).settle(nothing)
        assert plain["tokens"].peek(0).remaining == 100


@pytest.mark.parametrize("server", ["redis", "memory"])
def test_a_window_begins_with_the_first_request_that_was_not_refunded(
    redis_url: str, clock: ManualClock, server: str
) -> None:
    """Or two requests could start within the window of the second one."""
    url = redis_url if server == "redis" else "memory://"
    limits = {"job": "1/h using fixed-window from first-request"}
    job = Limiter(url, limits, clock=clock)["job"]
    reservation = job.reserve(1)
    clock.now += 1_800_000_000
    reservation.settle(0)
    assert job.try_acquire()
    clock.now += 3_599_999_999
    assert not job.try_acquire()
    clock.now += 1
    assert job.try_acquire()


@pytest.mark.parametrize("algorithm", PROMPT)
def test_every_algorithm_can_be_settled(plain: End, clock: ManualClock, algorithm: str) -> None:
    plain["job"].define(ten("h", algorithm))
    clock.now -= clock.now % 3_600_000_000
    first, second = plain["job"].reserve(6), plain["job"].reserve(4)
    assert not plain["job"].try_acquire(0.000001)
    inner(first, plain).settle(1)
    assert plain["job"].peek(0).remaining == 5
    inner(second, plain).settle(12)
    assert plain["job"].peek(0).remaining == 0
    wait = plain["job"].try_acquire(1).retry_after
    clock.advance(wait)
    assert plain["job"].try_acquire(1)


def test_a_leaky_queue_can_be_settled(plain: End, clock: ManualClock) -> None:
    plain["job"].define(ten("s", "leaky-queue"))
    first = plain["job"].reserve(4)
    with pytest.raises(Throttled) as caught:  # it would start when the four have leaked
        plain["job"].reserve(1)
    assert caught.value.retry_after == 0.4
    second = plain["job"].reserve(4, max_wait=0.4)
    assert (second.decision.delay, clock.now) == (0.4, START + 400_000)
    inner(first, plain).settle(1)  # it has leaked
    assert plain["job"].peek().delay == 0.4
    inner(second, plain).settle(1.5)
    assert plain["job"].peek().delay == 0.15


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_has_passed_is_not_given_back(plain: End, clock: ManualClock, algorithm: str) -> None:
    """A window must not admit more than with the actual cost."""
    plain["job"].define(ten("h", algorithm))
    clock.now -= clock.now % 3_600_000_000
    reservation = plain["job"].reserve(10)
    clock.advance(2 * 3600)
    assert plain["job"].try_acquire(10)
    inner(reservation, plain).settle(0)
    assert plain["job"].peek(0).remaining == 0
    assert not plain["job"].try_acquire(0.000001)


@pytest.mark.parametrize("algorithm", PROMPT)
def test_nothing_is_given_back_of_a_limit_that_has_changed(
    plain: End, clock: ManualClock, algorithm: str
) -> None:
    plain["job"].define(ten("h", algorithm))
    clock.now -= clock.now % 3_600_000_000
    reservation, debt = plain["job"].reserve(6), plain["job"].reserve(1)
    plain["job"].define(ten("m", algorithm))
    inner(reservation, plain).settle(0)
    assert plain["job"].peek(0).remaining == 3
    inner(debt, plain).settle(3)
    assert plain["job"].peek(0).remaining == 1


def test_several_limits_are_settled_together(limiter: End) -> None:
    both = ["tokens", limiter["api", "tenant"]]
    reservation = limiter.reserve(both, {"tokens": 50})
    assert limiter["api", "tenant"].peek(0).remaining == 4
    inner(reservation, limiter).settle({"tokens": 20})
    assert limiter["tokens"].peek(0).remaining == 80
    assert limiter["api", "tenant"].peek(0).remaining == 4  # 1, as it was not named
    reservation = limiter.reserve(both, {"tokens": 50, "api": 2})
    inner(reservation, limiter).settle({"tokens": 0, "api": 0})
    assert limiter["tokens"].peek(0).remaining == 80
    assert limiter["api", "tenant"].peek(0).remaining == 4


def test_a_reservation_is_settled_once(limiter: End) -> None:
    reservation = limiter["tokens"].reserve(60)
    inner(reservation, limiter).settle(10)
    with pytest.raises(ThrottleError, match="once"):
        inner(reservation, limiter).settle(10)
    assert limiter["tokens"].peek(0).remaining == 90


def test_a_reservation_that_is_refused_takes_nothing(limiter: End, clock: ManualClock) -> None:
    limiter["tokens"].try_acquire(60)
    with pytest.raises(Throttled) as caught:
        limiter["tokens"].reserve(50)
    assert (caught.value.limit, caught.value.retry_after) == ("tokens", 1.0)
    with pytest.raises(Throttled):
        limiter["tokens"].reserve(50, max_wait=0.999999)
    with pytest.raises(Throttled):
        limiter.reserve(["api", "tokens"], {"tokens": 50})
    assert clock.now == START
    assert limiter["tokens"].peek(0).remaining == 40
    assert limiter["api"].peek(0).remaining == 5
    assert limiter["tokens"].reserve(50, max_wait=1).decision.granted == 50
    assert clock.now == START + 1_000_000


@pytest.mark.parametrize("cost", [-1, -0.5, -1e300, True, None, "1", float("nan"), float("inf")])
def test_what_it_was_worth_must_be_a_number(plain: End, cost: Any) -> None:
    reservation = plain["tokens"].reserve(60)
    with pytest.raises(CostError, match=r"cost .* is not allowed.*0 or more"):
        inner(reservation, plain).settle(cost)
    assert plain["tokens"].peek(0).remaining == 40
    with pytest.raises(LimitError, match=r"'api'.*allowed: tokens"):
        inner(plain["tokens"].reserve(1), plain).settle({"api": 1})


@pytest.mark.parametrize("cost", [10**400, 1e300, Decimal("1E+999999")])
def test_a_debt_beyond_all_measure_ends(plain: End, clock: ManualClock, cost: Any) -> None:
    inner(plain["tokens"].reserve(60), plain).settle(cost)
    refused = plain["tokens"].try_acquire()
    assert refused.retry_after > 1_000_000
    clock.advance(refused.retry_after)
    assert plain["tokens"].try_acquire()


def test_an_estimate_must_be_one_that_can_pass(plain: End) -> None:
    for cost in (0, -1, 101, None, "5"):
        with pytest.raises(CostError):
            plain["tokens"].reserve(cost)
    with pytest.raises(UnknownLimitError):
        plain["nope"].reserve(1)
    with pytest.raises(LimitValueError, match=r"slot\(\)"):
        plain["two"].reserve(1)
    assert plain["two"].peek(0).remaining == 2


def test_a_reservation_outlives_the_definitions_on_the_server(
    plain: End, client: redis.Redis
) -> None:
    reservation = plain["tokens"].reserve(60)
    client.delete("{throttle}:limits")
    inner(reservation, plain).settle(80)
    assert plain["tokens"].peek(0).remaining <= 40


# Slots


def test_a_slot_is_held_for_the_time_of_a_with(limiter: End) -> None:
    with limiter.hold(limiter["two"].slot()) as decision:
        assert (decision.allowed, decision.burst, decision.remaining) == (True, 2, 1)
        with limiter.hold(limiter["two"].slot()) as second:
            assert second.remaining == 0
            with pytest.raises(Throttled) as caught, limiter.hold(limiter["two"].slot()):
                raise AssertionError
            assert (caught.value.limit, caught.value.key) == ("two", None)
            assert caught.value.retry_after == 30.0  # when the first lease would run out
            with limiter.hold(limiter["two", "key"].slot()):  # a limit of its own
                pass
        with limiter.hold(limiter["two"].slot()):
            pass
    assert limiter["two"].peek(0).remaining == 2


def test_a_slot_is_given_back_on_an_exception(limiter: End) -> None:
    class OwnError(Exception):
        pass

    with pytest.raises(OwnError), limiter.hold(limiter["one"].slot()):
        raise OwnError
    with limiter.hold(limiter["one"].slot()):
        pass


def test_a_slot_that_is_refused_leaves_nothing_behind(plain: End, client: redis.Redis) -> None:
    with plain.hold(plain["one"].slot()):
        before = client.zrange("{throttle}:entries:one", 0, -1, withscores=True)
        slot = plain["one"].slot()
        with pytest.raises(Throttled), plain.hold(slot):
            raise AssertionError
        assert client.zrange("{throttle}:entries:one", 0, -1, withscores=True) == before
    with plain.hold(slot):  # it can be tried again
        assert client.zcard("{throttle}:entries:one") == 1


def test_a_slot_is_for_one_with_at_a_time(limiter: End) -> None:
    slot = limiter["two"].slot()
    with limiter.hold(slot):
        with pytest.raises(ThrottleError, match="already held"), limiter.hold(slot):
            raise AssertionError
        assert limiter["two"].peek(0).remaining == 1
    with limiter.hold(slot):
        assert limiter["two"].peek(0).remaining == 1


def test_a_slot_is_waited_for_until_it_is_given_back(any_server_url: str, end_of: MakeEnd) -> None:
    class Returning(ManualClock):
        """Calls a function after some time."""

        call: Callable[[], object] = staticmethod(lambda: None)

        def advance(self, seconds: float) -> None:
            super().advance(seconds)
            if self.now >= START + 2_000_000:
                self.call()

    clock = Returning(START)
    other = Limiter(any_server_url, LIMITS, clock=clock)
    waiting = end_of(Limiter(any_server_url, LIMITS, clock=clock))
    with ExitStack() as stack:
        stack.enter_context(other["one"].slot())
        Returning.call = staticmethod(stack.close)
        with pytest.raises(Throttled), waiting.hold(waiting["one"].slot(max_wait=1.5)):
            raise AssertionError
        assert START + 1_500_000 <= clock.now <= START + 1_520_000
        with waiting.hold(waiting["one"].slot(max_wait=5)):
            # It is looked for often, as it may be given back at any time.
            assert START + 2_000_000 <= clock.now <= START + 2_040_000
    other.store.close()


def test_a_lease_that_is_not_renewed_runs_out(limiter: End, clock: ManualClock) -> None:
    with limiter.hold(limiter["one"].slot(lease=10)):
        clock.advance(9.999999)
        with pytest.raises(Throttled) as caught, limiter.hold(limiter["one"].slot()):
            raise AssertionError
        assert caught.value.retry_after == 0.000001
        clock.advance(0.000001)
        with limiter.hold(limiter["one"].slot()):
            assert limiter["one"].peek(0).remaining == 0
    assert limiter["one"].peek(0).remaining == 1


def test_a_slot_that_somebody_else_has_by_now_is_not_given_back(
    plain: End, clock: ManualClock
) -> None:
    with ExitStack() as late:
        late.enter_context(plain.hold(plain["one"].slot(lease=10)))
        clock.advance(10)
        with plain.hold(plain["one"].slot()):
            late.close()
            assert plain["one"].peek(0).remaining == 0


def test_a_lease_goes_on_when_it_is_renewed(
    redis_url: str, clock: ManualClock, client: redis.Redis
) -> None:
    limiter = Limiter(redis_url, LIMITS, clock=clock)
    slot = limiter["one"].slot(lease=10)
    with slot:
        requirement = limiter.require(["one"], 1)
        for _ in range(5):
            clock.advance(9)
            limiter.run_plan(limiter.plans.renew([(requirement.refs[0], slot._holder)], 10))
            assert limiter["one"].peek(0).remaining == 0
            assert limiter["one"].peek(1).retry_after == 10
        clock.advance(10)
        with limiter["one"].slot():
            limiter.run_plan(limiter.plans.renew([(requirement.refs[0], slot._holder)], 10))
            assert client.zcard("{throttle}:entries:one") == 1  # one that ran out stays gone
    limiter.store.close()


class Seen:
    """Counts the renewals of a limiter, and signals when there were enough."""

    def __init__(self, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.renewals = 0
        self.enough = threading.Event()
        run, arun = limiter.store.run, limiter.store.arun

        def noted(call: Call) -> Any:
            reply = run(call)
            self._note(call)
            return reply

        async def anoted(call: Call) -> Any:
            reply = await arun(call)
            self._note(call)
            return reply

        monkeypatch.setattr(limiter.store, "run", noted)
        monkeypatch.setattr(limiter.store, "arun", anoted)

    def _note(self, call: Call) -> None:
        if call.script.name == "renew":
            self.renewals += 1
            if self.renewals >= 3:
                self.enough.set()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of ten seconds are renewed every ten milliseconds."""
    monkeypatch.setattr(lease_renewer, "RENEWALS_PER_LEASE", 1000)
    monkeypatch.setattr(lease_renewer, "CHECK_SECONDS", 0.001)


def renewing(limiter: Limiter) -> threading.Thread:
    thread = limiter.lease_renewer._thread
    assert thread is not None
    return thread


def test_a_shorter_lease_after_a_longer_one_is_renewed_in_time(redis_url: str) -> None:
    limiter = Limiter(redis_url, LIMITS)
    with limiter["two"].slot(lease=3600):
        pass
    with limiter["one"].slot(lease=6):
        entries = limiter.keys.entries(LimitRef("one", None))
        with redis.Redis.from_url(redis_url) as client:
            ((_, first),) = client.zrange(entries, 0, -1, withscores=True)
            until = time.monotonic() + 20
            while client.zrange(entries, 0, -1, withscores=True)[0][1] == first:
                assert time.monotonic() < until
                time.sleep(0.02)
    limiter.store.close()


@pytest.mark.usefixtures("hasty")
def test_a_slot_that_is_held_later_is_renewed_as_soon(redis_url: str) -> None:
    limiter = Limiter(redis_url, LIMITS)
    with limiter["two"].slot(lease=3600), limiter["one"].slot(lease=10):
        until = time.monotonic() + 10
        entries = limiter.keys.entries(LimitRef("one", None))
        with redis.Redis.from_url(redis_url) as client:
            ((_, first),) = client.zrange(entries, 0, -1, withscores=True)
            while client.zrange(entries, 0, -1, withscores=True)[0][1] == first:
                assert time.monotonic() < until
    limiter.store.close()


@pytest.mark.usefixtures("hasty")
def test_a_thread_renews_the_lease_while_it_is_held(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(redis_url, LIMITS)
    seen = Seen(limiter, monkeypatch)
    with limiter["one"].slot(lease=10), limiter["two"].slot():
        thread = renewing(limiter)
        assert seen.enough.wait(10)
        assert limiter["one"].peek(0).remaining == 0
    thread.join(10)
    assert not thread.is_alive()
    assert limiter["one"].peek(0).remaining == 1
    limiter.store.close()


@pytest.mark.usefixtures("hasty")
async def test_a_thread_renews_the_lease_of_a_task_as_well(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(redis_url, LIMITS)
    seen = Seen(limiter, monkeypatch)
    async with limiter["one"].slot(lease=10):
        thread = renewing(limiter)
        assert await asyncio.to_thread(seen.enough.wait, 10)
        assert (await limiter["one"].apeek(0)).remaining == 0
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    limiter.store.close()
    assert (await limiter["one"].apeek(0)).remaining == 1
    await limiter.store.aclose()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_may_be_closed_while_a_slot_is_given_back(redis_url: str) -> None:
    limiter = Limiter(redis_url, LIMITS)
    slot = limiter["one"].slot(lease=1)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(slot.__aenter__())

    async def begin() -> None:
        leaving = asyncio.ensure_future(slot.__aexit__(None, None, None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not leaving.done()

    loop.run_until_complete(begin())
    loop.close()
    gc.collect()  # ends what was left, which may raise nothing then
    limiter.store.close()


@pytest.mark.parametrize("name", ["github", "logged"])
def test_limits_of_one_name_are_taken_with_the_slot(plain: End, name: str) -> None:
    limit = plain[name]
    with plain.hold(limit.slot()) as decision:
        assert (decision.burst, decision.remaining) == (2, 1)
        with plain.hold(limit.slot()), pytest.raises(Throttled), plain.hold(limit.slot()):
            raise AssertionError
    for _ in range(3):
        with plain.hold(limit.slot()):
            pass
    with pytest.raises(Throttled) as caught, plain.hold(limit.slot()):  # five in this hour
        raise AssertionError
    assert caught.value.limit == name
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 3600


def test_a_slot_and_another_limit_are_taken_together_or_not_at_all(plain: End) -> None:
    with plain.hold(plain.slot(["api", plain["two", 7]], {"api": 4})) as decision:
        assert decision.remaining == 1
        with pytest.raises(Throttled) as caught, plain.hold(plain.slot(["two", "api"], 2)):
            raise AssertionError
        assert caught.value.limit == "api"
        assert plain["two"].peek(0).remaining == 2
        assert plain["two", 7].peek(0).remaining == 1
    assert plain["api"].peek(0).remaining == 1  # only the slot is given back
    assert plain["two", 7].peek(0).remaining == 2


def test_a_renewal_keeps_what_other_limits_of_the_name_remember(
    redis_url: str, clock: ManualClock, client: redis.Redis
) -> None:
    limiter = Limiter(redis_url, LIMITS, clock=clock)
    slot = limiter["logged"].slot(lease=10)
    with slot:
        log = "{throttle}:entries:logged+1"
        remembered, lasts = client.dump(log), client.pttl(log)
        clock.advance(3)
        renewed = [(ref, slot._holder) for ref in limiter.require(["logged"], 1).refs]
        limiter.run_plan(limiter.plans.renew(renewed, 10))
        assert client.dump(log) == remembered
        assert lasts - 5_000 <= client.pttl(log) <= lasts
        assert limiter["logged"].peek(0).remaining == 1
    limiter.store.close()


def test_fewer_slots_wait_for_those_in_use(limiter: End) -> None:
    with limiter.hold(limiter["two"].slot()):
        with limiter.hold(limiter["two"].slot()):
            limiter["two"].define("1 at once")
            assert limiter["two"].peek(0).remaining == 0
        with pytest.raises(Throttled), limiter.hold(limiter["two"].slot()):
            raise AssertionError
        limiter["two"].define("3 at once")
        assert limiter["two"].peek(0).remaining == 2
        limiter["two"].reset()  # slots in use stay in use
        assert limiter["two"].peek(0).remaining == 2
    assert limiter["two"].peek(0).remaining == 3


def test_a_pause_holds_slots_too(limiter: End, clock: ManualClock) -> None:
    limiter["two"].pause(30)
    for max_wait in (0, 5):
        slot = limiter["two"].slot(max_wait=max_wait)
        with pytest.raises(Throttled) as caught, limiter.hold(slot):
            raise AssertionError
        assert caught.value.retry_after == 30.0
        assert clock.now == START  # nobody can end a pause by giving a slot back
    clock.advance(30)
    with limiter.hold(limiter["two"].slot()):
        pass


def test_slots_are_only_for_slot(limiter: End) -> None:
    """Whether or not a slot is free: a slot that is not released must not be taken."""
    calls: list[Callable[[], object]] = [
        limiter["one"].acquire,
        lambda: limiter["one"].acquire(max_wait=5),
        lambda: limiter["one"].acquire_up_to(3),
        lambda: limiter["one"].reserve(1),
        lambda: limiter.try_acquire(["api", "one"]),
        limiter["github"].acquire,
    ]
    for call in calls[:-1]:
        with pytest.raises(LimitValueError, match=r"'one' has slots.*with limiter\['one'\]\.slot"):
            call()
    with pytest.raises(LimitValueError, match=r"'github' has slots.*limiter\['github'\]\.slot"):
        calls[-1]()
    assert limiter["one"].peek().allowed
    with limiter.hold(limiter["one"].slot()):
        for call in calls[:-1]:
            with pytest.raises(LimitValueError, match=r"'one' has slots.*\.slot"):
                call()
        assert not limiter["one"].peek()
    assert limiter["api"].peek(0).remaining == 5
    assert limiter["github"].peek(0).remaining == 2


def test_a_slot_of_a_limit_without_slots_is_an_acquire(plain: End) -> None:
    with plain.hold(plain["api"].slot(2)) as decision:
        assert decision.remaining == 3
    assert plain["api"].peek(0).remaining == 3


@pytest.mark.parametrize("lease", [0, 0.999, 3601, -1, float("nan"), True, "30", None])
def test_a_lease_that_is_none(plain: End, lease: Any) -> None:
    with pytest.raises(LimitValueError, match="a lease of"):
        plain["one"].slot(lease=lease)


@pytest.mark.parametrize("wait", [-1, float("nan"), True, "1", None])
def test_a_wait_that_is_no_time(plain: End, wait: Any) -> None:
    with pytest.raises(LimitValueError, match="max_wait of"):
        plain["one"].slot(max_wait=wait)
    with pytest.raises(LimitValueError, match="max_wait of"):
        plain["api"].reserve(1, max_wait=wait)
    assert plain["one"].peek(0).remaining == 1


def test_a_lease_begins_when_the_delay_of_a_queue_is_over(plain: End, clock: ManualClock) -> None:
    plain["job"].define("1/3s burst 9 using leaky-queue")
    plain["job"].try_acquire()
    began = clock.now
    with plain.hold(plain.slot(["job", "one"], max_wait=5, lease=2)):
        assert clock.now == began + 3_000_000
        clock.advance(1.999999)
        assert plain["one"].peek(0).remaining == 0


@pytest.mark.parametrize("using", ["fixed-window", "sliding-window", "sliding-log", "gcra burst 5"])
def test_what_was_reserved_before_a_reset_gives_nothing_back(
    plain: End, clock: ManualClock, using: str
) -> None:
    plain["job"].define(f"5/h using {using}")
    reservation = plain["job"].reserve(5)
    clock.advance(0.001)
    plain["job"].reset()
    assert plain["job"].try_acquire(5)
    reservation.settle(0)
    assert plain["job"].peek(0).remaining == 0


def test_a_slot_of_a_limit_that_nobody_knows(plain: End) -> None:
    with pytest.raises(UnknownLimitError, match="'nope'"), plain.hold(plain["nope"].slot()):
        raise AssertionError
