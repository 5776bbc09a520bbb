"""Requests that are decided, and parked, in one round trip: each has its own reply or error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle import Limiter, StoreError, StoreUnavailableError
from celery_throttle.errors import CostError
from celery_throttle.limits.key import LimitRef
from celery_throttle.limits.requirement import Requirement
from celery_throttle.operations.acquire import GateRequest, gate_call
from celery_throttle.operations.plan import Plan
from celery_throttle.operations.replies import ReplyStatus
from celery_throttle.operations.shards import ShardIdentity, begin_move
from celery_throttle.store.script import Call, script
from celery_throttle.worker.admission.batching import DecisionBatch, run_together
from celery_throttle.worker.health.loop_calls import LoopCalls, run_in_place
from celery_throttle.worker.hooks.timers import ThreadTimers
from celery_throttle.worker.tuning import DECISION_BATCH_SIZE
from tests.servers.server import Server
from tests.shards import HOME_KEYS, home_store_of, shard_limiter


@pytest.mark.parametrize(("size", "most"), [(100, DECISION_BATCH_SIZE), (600_000, 2), (10**7, 1)])
def test_a_round_has_few_large_messages(size: int, most: int) -> None:
    rounds: list[int] = []
    calls: list[Callable[[], None]] = []

    timers: Any = SimpleNamespace(
        call_after=lambda _, function, args=(): calls.append(lambda: function(*args))
    )
    batch = DecisionBatch(
        lambda requests: rounds.append(len(requests)), timers, LoopCalls(ThreadTimers())
    )
    for _ in range(20):
        state = SimpleNamespace(move=lambda _: None)
        message = SimpleNamespace(body=b"x" * size)
        batch.add(SimpleNamespace(throttle_state=state, message=message))
    while calls:
        calls.pop()()
    assert sum(rounds) == 20
    assert max(rounds) == most


@pytest.fixture
def limiter(own_server: Server) -> Limiter:
    limiter = Limiter(own_server.url, {"api": "3/h burst 3"}, timeout=4.0)
    limiter.register()
    return limiter


#: The server refuses it: there is no argument.
WRONG = Call(script("admit"), ["ct:limits"])


def together(limiter: Limiter, plans: list[Plan[bool]]) -> list[bool | Exception]:
    return run_in_place(run_together(limiter, plans))


def alone(limiter: Limiter, plan: Plan[bool]) -> bool:
    (result,) = together(limiter, [plan])
    if isinstance(result, Exception):
        raise result
    return result


def take(limiter: Limiter) -> Plan[bool]:
    requirement = Requirement((LimitRef("api", None),), (1_000_000,))
    (reply,) = yield gate_call(limiter.plans, [GateRequest(requirement)], 0)
    return bool(reply[0] == ReplyStatus.ALLOWED)


def fail() -> Plan[bool]:
    yield WRONG
    return True


def tell_of_it() -> Plan[bool]:
    try:
        yield WRONG
    except StoreError:
        return False
    return True


def raise_its_own(limiter: Limiter) -> Plan[bool]:
    yield from take(limiter)
    raise CostError("no")


def break_down(limiter: Limiter) -> Plan[bool]:
    yield from take(limiter)
    raise ConnectionError("of something else")


def at_once() -> Plan[bool]:
    return True
    yield WRONG


def test_they_are_carried_out_in_their_order(limiter: Limiter) -> None:
    results = together(limiter, [take(limiter) for _ in range(5)])
    assert results == [True, True, True, False, False]


def test_in_one_round_trip(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run_all = limiter.store.run_all

    def counted(these: list[Call]) -> list[object]:
        calls.append(len(these))
        return run_all(these)

    monkeypatch.setattr(limiter.store, "run_all", counted)
    assert together(limiter, [take(limiter), at_once(), take(limiter)]) == [True] * 3
    assert calls == [2]


def test_each_has_its_own_error(limiter: Limiter) -> None:
    broken = break_down(limiter)
    plans = [take(limiter), fail(), tell_of_it(), raise_its_own(limiter), broken]
    first, refused, told, own, last = together(limiter, plans)
    assert (first, told) == (True, False)
    assert isinstance(last, ConnectionError)
    assert isinstance(refused, StoreError)
    assert isinstance(own, CostError)


def test_a_server_without_the_scripts(own_server: Server, limiter: Limiter) -> None:
    assert alone(limiter, take(limiter))
    with own_server.client() as client:
        client.script_flush()
    assert together(limiter, [take(limiter) for _ in range(2)]) == [True, True]


def test_without_a_server_all_have_the_error(own_server: Server, limiter: Limiter) -> None:
    own_server.stop()
    results = together(limiter, [take(limiter), take(limiter)])
    assert [type(result) for result in results] == [StoreUnavailableError] * 2
    with pytest.raises(StoreUnavailableError):
        alone(limiter, take(limiter))
    own_server.start()
    limiter.store.breaker.close()
    limiter.register()
    assert alone(limiter, take(limiter))


def test_a_server_that_is_back_closes_the_breaker(limiter: Limiter) -> None:
    limiter.store.breaker.trip(StoreUnavailableError("it was out"))
    limiter.store.breaker._retry_at = 0.0
    assert together(limiter, [take(limiter), take(limiter)]) == [True, True]
    assert not limiter.store.breaker.is_open


def take_registered(limiter: Limiter) -> Plan[bool]:
    requirement = Requirement((LimitRef("api", None),), (1_000_000,))
    return bool((yield from limiter.plans.try_acquire(requirement, 0.0)).decision)


@pytest.fixture
def of_shard(redis_url: str, own_server: Server) -> Iterator[Limiter]:
    """Limits of a shard; the home shard is on a server of its own."""
    limits = {"api": "3/h burst 3"}
    limiter = shard_limiter(redis_url, "mail", limits, home_url=own_server.url)
    yield limiter
    limiter.store.close()
    home_store_of(limiter).close()


def test_the_home_shard_is_asked_in_the_middle_of_a_decision(
    of_shard: Limiter, own_server: Server
) -> None:
    plans = [take_registered(of_shard) for _ in range(4)]
    assert together(of_shard, plans) == [True, True, True, False]
    with own_server.client() as client:
        assert client.hexists(HOME_KEYS.shards, "api")


def test_a_lost_home_shard_is_no_outage_of_another_shard(
    of_shard: Limiter, own_server: Server
) -> None:
    own_server.stop()
    with pytest.raises(StoreError, match="the home shard, which does that, cannot be") as raised:
        alone(of_shard, take_registered(of_shard))
    assert not isinstance(raised.value, StoreUnavailableError)
    assert not of_shard.store.breaker.is_open
    own_server.start()
    home_store_of(of_shard).breaker.close()
    assert alone(of_shard, take_registered(of_shard))


def test_a_limit_that_is_being_moved_is_no_outage(of_shard: Limiter, own_server: Server) -> None:
    home = Limiter(own_server.url)
    home.run_plan(begin_move(HOME_KEYS, "api", ShardIdentity("erp")))
    with pytest.raises(StoreError, match="being moved") as raised:
        alone(of_shard, take_registered(of_shard))
    assert not isinstance(raised.value, StoreUnavailableError)
