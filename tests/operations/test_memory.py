"""Limits in memory: each operation has the same outcome as on a server, and none needs one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_throttle.errors import ConfigurationError, Throttled, ThrottleError, UnknownLimitError
from celery_throttle.limiter.limiter import Limiter
from celery_throttle.limits.feedback import Feedback
from celery_throttle.limits.grammar import ALGORITHMS
from celery_throttle.limits.key import LimitRef
from celery_throttle.testing import ManualClock
from tests.protocol import START
from tests.servers.server import Server
from tests.sizes import examples

LIMITS = {
    "api": "10/s burst 5",
    "mail": ["5/s burst 2 using token-bucket", "6/m using fixed-window"],
    "bulk": "4/s using sliding-log",
    "queue": "10/s burst 3 using leaky-queue",
    "adaptive": "adaptive 1..10/s",
    "capped": "2/s burst 2 max-keys 2",
    "jobs": ["2 at once", "20/s burst 4"],
}

_names = st.sampled_from([name for name in LIMITS if name != "jobs"])
_keys = st.sampled_from([None, None, "a", "b", "c"])
_refs = st.tuples(_names, _keys).map(lambda ref: ref[0] if ref[1] is None else ref)
_several = st.lists(_refs, min_size=1, max_size=3, unique=True)
_costs = st.sampled_from([1, 1, 2, 0.5, 3, 9])
_waits = st.sampled_from([None, 0])
_limits = st.sampled_from(["1/s burst 3", "100/s", "3/s using sliding-window", "2 at once"])

_operations = st.one_of(
    st.tuples(st.just("acquire"), _several, _costs, _waits),
    st.tuples(st.just("acquire_up_to"), _several, st.sampled_from([0, 1, 2.5, 20])),
    st.tuples(st.just("peek"), _several, st.sampled_from([0, 1, 4])),
    st.tuples(st.just("reserve"), _several, _costs),
    st.tuples(st.just("settle"), st.sampled_from([0, 1, 4])),
    st.tuples(st.just("slot"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("release")),
    st.tuples(st.just("learn"), _several, st.booleans(), st.sampled_from([None, 0, 2])),
    st.tuples(st.just("pause"), _refs, st.sampled_from([0, 1, None])),
    st.tuples(st.just("resume"), _refs),
    st.tuples(st.just("reset"), _refs),
    st.tuples(st.just("define"), _names, _keys, _limits),
    st.tuples(st.just("undefine"), _names, _keys),
    st.tuples(st.just("advance"), st.sampled_from([0.05, 0.1, 0.5, 2.0])),
)


class User:
    """Plays operations with one limiter, and returns the outcome of each."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(START)
        self.limiter = Limiter(url, LIMITS, clock=self.clock)
        self._reserved: list[Any] = []
        self._held: list[Any] = []

    def play(self, name: str, *arguments: Any) -> Any:
        try:
            method: Callable[..., Any] = getattr(self, f"_{name}", None) or getattr(
                self.limiter, name
            )
            return method(*arguments)
        except Throttled as error:
            return "refused", error.limit, error.key, error.retry_after, error.paused
        except ThrottleError:  # of two mistakes in a call either may be named
            return "mistake"

    def _acquire(self, limits: Any, cost: Any, max_wait: float | None) -> Any:
        if max_wait is None:
            return self.limiter.try_acquire(limits, cost, max_wait=None)
        return self.limiter.acquire(limits, cost, max_wait=max_wait)

    def _reserve(self, limits: Any, cost: Any) -> Any:
        reservation = self.limiter.reserve(limits, cost)
        self._reserved.append(reservation)
        return reservation.decision

    def _settle(self, actual: Any) -> None:
        if self._reserved:
            self._reserved.pop().settle(actual)

    def _slot(self, key: str) -> Any:
        slot = self.limiter["jobs", key].slot()
        decision = slot.__enter__()
        self._held.append(slot)
        return decision

    def _release(self) -> None:
        if self._held:
            self._held.pop(0).__exit__(None, None, None)

    def _learn(self, limits: Any, refused: bool, left: int | None) -> Any:  # noqa: FBT001  # played
        return self.limiter.learn(limits, Feedback(refused=refused, left=left, took=0.1))

    def _pause(self, limit: Any, seconds: float | None) -> Any:
        return self.limiter[limit].pause(seconds)

    def _resume(self, limit: Any) -> Any:
        return self.limiter[limit].resume()

    def _reset(self, limit: Any) -> Any:
        return self.limiter[limit].reset()

    def _define(self, name: str, key: str | None, limit: str) -> None:
        self.limiter[LimitRef(name, key)].define(limit)

    def _undefine(self, name: str, key: str | None) -> None:
        self.limiter[LimitRef(name, key)].undefine()

    def _advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        while self._held:
            self._release()
        self.limiter.store.close()


@settings(
    max_examples=examples(1000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(played=st.lists(_operations, max_size=25))
def test_each_operation_has_the_outcome_that_a_server_gives(
    redis_url: str, valkey_server: Server, played: list[tuple[Any, ...]]
) -> None:
    with valkey_server.client() as client:
        client.flushdb()
    server, memory = User(redis_url), User("memory://")
    try:
        for operation in played:
            assert memory.play(*operation) == server.play(*operation), operation
    finally:
        server.close()
        memory.close()


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "concurrency"])
def test_a_wait_moves_the_clock_to_the_moment_at_which_the_limit_allows_it(algorithm: str) -> None:
    clock = ManualClock(START)
    text = "adaptive 2..2/s" if algorithm == "adaptive" else f"2/s using {algorithm}"
    api = Limiter("memory://", {"api": text}, clock=clock)["api"]
    while api.try_acquire():
        pass
    wait = api.peek().retry_after
    assert wait
    assert api.acquire(max_wait=5)
    assert clock.now == START + round(wait * 1e6)


def test_without_a_clock_of_its_own_it_waits_in_real_time() -> None:
    api = Limiter("memory://", {"api": "100/s"})["api"]
    assert api.try_acquire()
    assert api.acquire(max_wait=10)
    with pytest.raises(Throttled):
        api.acquire(1, max_wait=0)


def test_a_slot_is_renewed_and_released_in_memory() -> None:
    limiter = Limiter("memory://", {"jobs": "1 at once"}, clock=ManualClock(START))
    with limiter["jobs"].slot(), pytest.raises(Throttled), limiter["jobs"].slot():
        pass
    with limiter["jobs"].slot() as decision:
        assert decision


def test_it_is_for_asyncio_as_well() -> None:
    limiter = Limiter("memory://", {"api": "1/s"}, clock=ManualClock(START))

    async def two() -> list[bool]:
        return [bool(await limiter["api"].atry_acquire()) for _ in range(2)]

    assert asyncio.run(two()) == [True, False]


def test_threads_share_a_limit() -> None:
    limiter = Limiter("memory://", {"api": "1/h burst 100"})
    allowed: list[bool] = []

    def take() -> None:
        allowed.extend(bool(limiter["api"].try_acquire()) for _ in range(50))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 100


def test_nothing_waits_so_a_forecast_is_empty() -> None:
    limiter = Limiter("memory://", {"api": "1/s"})
    limiter["late"].define("1/s")
    for name in ("api", "late"):
        forecast = limiter[name].forecast()
        assert (forecast.waiting, forecast.seconds) == (0, 0.0)
    with pytest.raises(UnknownLimitError):
        limiter["unknown"].forecast()


def test_what_needs_a_server_says_so() -> None:
    limiter = Limiter("memory://", {"api": "1/s"})
    with pytest.raises(ConfigurationError, match=r"needs a server.*memory://.*set the URL"):
        limiter.store.connection()


class TestDisabled:
    """A limiter with ``enabled=False`` allows everything, without a server."""

    @pytest.fixture
    def limiter(self) -> Limiter:
        return Limiter(
            "redis://nowhere.invalid", {"api": "1/h", "jobs": "1 at once"}, enabled=False
        )

    def test_all_requests_are_allowed(self, limiter: Limiter) -> None:
        for _ in range(3):
            decision = limiter.acquire(["api", limiter["api", "key"]], max_wait=0)
            assert decision.allowed
            assert decision.granted == 1
            assert limiter["api"].try_acquire(9)  # above the burst
            assert limiter["not-defined"].try_acquire()
            assert limiter["api"].acquire_up_to(7).granted == 7
            assert limiter["api"].peek(3).granted == 0

    def test_reservations_slots_and_feedback_pass(self, limiter: Limiter) -> None:
        limiter["api"].reserve(5).settle(99)
        with limiter["jobs"].slot(), limiter["jobs"].slot() as decision:
            assert decision
        assert limiter.learn(["api"], Feedback(refused=True, stop=60.0)) == 0
        assert limiter["api"].try_acquire()

    def test_what_changes_limits_has_no_effect(self, limiter: Limiter) -> None:
        limiter["api"].define("2/h")
        limiter["api"].pause(None)
        assert limiter["api"].try_acquire()
        limiter["api"].resume()
        limiter["api"].reset()
        limiter["not-defined"].reset()
        limiter["api"].undefine()
        limiter.register()

    def test_a_log_line_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        Limiter("redis://nowhere.invalid", enabled=False)
        (record,) = caplog.records
        assert "disabled" in record.getMessage()
        assert "enabled=False" in record.getMessage()


def kept(limiter: Limiter) -> int:
    plans: Any = limiter.plans
    memory = plans._memory
    return len(memory._states) + len(memory._pauses)


@pytest.mark.parametrize("name", ["api", "mail", "bulk", "queue", "capped"])
def test_idle_keys_are_forgotten(name: str) -> None:
    """Some at each call, which looks at two of them at most."""
    clock = ManualClock(START)
    limiter = Limiter("memory://", {**LIMITS, "capped": "2/s burst 2 max-keys 1000"}, clock=clock)
    for number in range(500):
        limiter[name, number].try_acquire()
        limiter[name, number].pause(1)
    assert kept(limiter) == 1000
    clock.advance(61)
    before = kept(limiter)
    for _ in range(1100):
        limiter["api", "busy"].try_acquire(0.001)
        assert 0 <= before - kept(limiter) <= 4
        before = kept(limiter)
    assert kept(limiter) == 1


def test_released_slots_are_forgotten() -> None:
    limiter = Limiter("memory://", {"jobs": "2 at once"}, clock=ManualClock(START))
    for number in range(500):
        with limiter["jobs", number].slot():
            pass
    assert kept(limiter) <= 1


def test_what_still_matters_is_kept() -> None:
    """A rate that has adapted, and a window that has a while to go."""
    clock = ManualClock(START)
    limits = {"slow": "adaptive 1..10/s", "window": "9/h using fixed-window from first-request"}
    limiter = Limiter("memory://", {**LIMITS, **limits}, clock=clock)
    limiter["slow"].learn(Feedback(refused=True))
    limiter["window"].reserve(5).settle(1)
    clock.advance(60)
    for _ in range(100):
        limiter["api", "busy"].try_acquire(0.001)
    assert kept(limiter) == 3
    clock.advance(3600)
    for _ in range(100):
        limiter["api", "busy"].try_acquire(0.001)
    assert kept(limiter) == 1


def test_a_lost_slot_does_not_release_that_of_another() -> None:
    """Its state was forgotten meanwhile, and the numbers of leases began anew."""
    clock = ManualClock(START)
    limiter = Limiter("memory://", {**LIMITS, "one": "1 at once"}, clock=clock)
    lost = limiter["one"].slot()
    lost.__enter__()
    clock.advance(3600)
    for _ in range(10):
        limiter["api"].try_acquire(0.001)
    with limiter["one"].slot():
        lost.__exit__(None, None, None)
        assert not limiter["one"].peek()
