"""The circuit breaker of a store."""

from __future__ import annotations

import os
import time

import pytest
import redis

from celery_throttle import Limiter, StoreError, StoreUnavailableError
from celery_throttle.store import breaker as module
from tests.ends import MakeEnd
from tests.servers.server import Server

LIMITS = {"api": "1000/s burst 1000"}


@pytest.fixture
def limiter(own_server: Server) -> Limiter:
    limiter = Limiter(own_server.url, LIMITS, timeout=20)  # one that is stopped refuses at once
    assert limiter["api"].try_acquire()
    return limiter


def freeze(own_server: Server, seconds: float) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("CLIENT", "PAUSE", round(seconds * 1000))


def seconds_of_refusal(limiter: Limiter) -> float:
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        limiter["api"].try_acquire()
    return time.monotonic() - began


@pytest.mark.thorough
def test_a_server_that_does_not_answer_is_waited_for_once_a_second(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = Limiter(own_server.url, LIMITS, timeout=0.2)
    freeze(own_server, 100)
    assert seconds_of_refusal(limiter) >= 0.2
    monkeypatch.setattr(module, "RETRY_SECONDS", 1000)
    assert limiter.store.breaker.is_open
    limiter.store.breaker.trip(StoreUnavailableError("it cannot be reached"))
    assert min(seconds_of_refusal(limiter) for _ in range(20)) < 0.05
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    limiter.store.breaker.trip(StoreUnavailableError("it cannot be reached"))
    assert seconds_of_refusal(limiter) >= 0.2


def test_a_sentence_may_follow_the_error_of_a_lost_server(
    own_server: Server, limiter: Limiter
) -> None:
    own_server.stop()
    with pytest.raises(StoreUnavailableError, match=r"cannot be reached: .*[^.]$"):
        limiter["api"].try_acquire()


def test_the_first_answer_closes_it(
    own_server: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    own_server.stop()
    seconds_of_refusal(limiter)
    own_server.start()
    assert limiter["api"].try_acquire()
    assert not limiter.store.breaker.is_open


@pytest.mark.thorough
def test_for_both_ends(
    own_server: Server, end_of: MakeEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 1000)
    end = end_of(Limiter(own_server.url, LIMITS, timeout=20))
    assert end.try_acquire(["api"])
    own_server.stop()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            end.try_acquire(["api"])
    own_server.start()
    with pytest.raises(StoreUnavailableError):  # not yet
        end.try_acquire(["api"])


def test_a_connection_that_is_cut_does_not_open_it(own_server: Server, limiter: Limiter) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        for _ in range(20):
            client.client_kill_filter(_type="normal", skipme=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    "celery_throttle.store.connection.FRESH_SECONDS", 100
                )  # it is not looked at first
                with pytest.raises(StoreUnavailableError):
                    limiter["api"].try_acquire()
            assert not limiter.store.breaker.is_open
            assert limiter["api"].try_acquire()


def test_an_error_that_the_server_replies_does_not_open_it(
    own_server: Server, limiter: Limiter
) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        client.set("{throttle}:limits", "no hash")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            limiter["api"].try_acquire()
        assert not limiter.store.breaker.is_open
        client.delete("{throttle}:limits")


def test_who_watches_is_told_and_no_call_waits(own_server: Server, limiter: Limiter) -> None:
    told: list[StoreUnavailableError] = []
    limiter.store.breaker.watcher = told.append
    own_server.stop()
    while not told:  # the first may have found its connection cut
        seconds_of_refusal(limiter)
    own_server.start()
    seconds_of_refusal(limiter)
    limiter.store.probe(
        limiter.plans._acquire_call(limiter.require(["api"], 1), "peek", None, None)
    )
    assert limiter["api"].try_acquire()


def test_a_child_tries_for_itself(own_server: Server, limiter: Limiter) -> None:
    limiter.store.breaker.watcher = lambda _: None
    own_server.stop()
    seconds_of_refusal(limiter)
    own_server.start()
    child = os.fork()
    if child == 0:
        os._exit(not limiter["api"].try_acquire())
    assert os.waitpid(child, 0)[1] == 0
