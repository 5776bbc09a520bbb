"""The claims of a worker, used from several threads as in pools without an event loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle.operations.waiting import list_claims_call
from celery_throttle.store.client import Store
from celery_throttle.store.keys import Keys
from celery_throttle.store.script import Call
from celery_throttle.worker.claim import Claim, Claims
from tests.protocol import Protocol

TASKS = 40


@pytest.fixture
def claims(lines: Protocol) -> Claims:
    """Claims of all tasks of a line."""
    lines.park("x", ["api"], cost=1000)
    for number in range(TASKS):
        assert lines.park(str(number), ["api"]).outcome == "parked"
    lines.limiter["api"].reset()
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    for row in lines.claim("w", room=TASKS):
        claims.receive([claims.reserve_tokens(1), 1, 0, 0, row.message, b"", b"api", 1])
        assert row.token == len(claims)
    assert lines.waiting() == []
    return claims


def run_in_threads(*calls: Callable[[], Any], apart: float = 0.0) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
        time.sleep(apart)
    for thread in threads:
        thread.join()


def test_processes_are_booked_again_while_all_recent_tasks_are_short(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long task counts until some short ones have ended after it."""
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    held = iter(claims)

    def run(seconds: float) -> None:
        nonlocal now
        claim = next(held)
        assert claim.start()
        now += seconds
        claim.end()
        claim.end()  # counts once
        claim.settle()

    assert claims.short_runs() == 0
    run(0.001)
    assert claims.short_runs() == TASKS - 1
    run(0.006)
    assert claims.short_runs() == 0
    run(0.001)
    run(0.001)
    assert claims.short_runs() == TASKS - 4
    assert next(held).start()
    assert claims.short_runs() == TASKS - 4


def test_tasks_that_no_process_runs_do_not_count_as_running(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery drops some when it loses the broker; of those without units the gate decides."""
    monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    dropped, *others = claims
    assert dropped.start()
    for held in others:
        assert held.start()
        held.end()
    assert claims.short_runs() == 1
    dropped.requeue()
    assert claims.short_runs() == 0
    claim = claims.receive([claims.reserve_tokens(1), 0, 0, 0, b"", b""]).claim
    assert claim.start()
    assert claims.short_runs() == 0


def test_no_token_is_reserved_twice(lines: Protocol) -> None:
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    tokens: list[int] = []
    run_in_threads(*[lambda: tokens.extend(claims.reserve_tokens(1) for _ in range(5_000))] * 3)
    assert len(set(tokens)) == len(tokens)


def test_all_requeued_claims_reach_their_line(
    lines: Protocol, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are added while calls of two threads are on their way."""
    run = Store.run

    def slow(store: Store, call: Call) -> Any:
        time.sleep(0.1)
        return run(store, call)

    monkeypatch.setattr(Store, "run", slow)
    first, second, *_ = claims.unstarted()
    run_in_threads(
        first.requeue,
        second.requeue,
        lambda: claims.requeue_uncertain(range(3, TASKS + 1)),
        apart=0.01,
    )
    claims.requeue_pending()
    assert lines.waiting() == sorted(map(str, range(TASKS)))
    lines.check()


def test_a_claim_is_either_started_or_requeued(claims: Claims) -> None:
    """A shutdown in one thread, a start in another: if both succeed, the task runs twice."""
    held = claims.unstarted()
    started: list[Claim] = []
    run_in_threads(
        lambda: started.extend(claim for claim in held if claim.start()),
        lambda: claims.requeue(claims.unstarted(), unless_started=True),
    )
    assert [claim for claim in held if not claim.is_returned] == started
    assert claims.started() == started


def test_a_started_claim_can_be_requeued(lines: Protocol, claims: Claims) -> None:
    """So does a task that rejects its message."""
    first, second, *_ = claims.unstarted()
    assert first.start()
    first.requeue()
    assert lines.waiting() == ["0"]
    assert second.start()
    claims.requeue([second], unless_started=True)
    assert lines.waiting() == ["0"]


def test_claims_that_only_the_server_has_are_settled_or_requeued(
    lines: Protocol, claims: Claims
) -> None:
    """A failover has lost the report, or the reply: which of them, only this worker may know."""
    settled, refused, pending, *held = claims.unstarted()
    assert settled.start()
    settled.settle()
    refused.settle()
    claims.settled.take()
    pending.settle()
    unknown = held.pop()
    del claims._held[unknown.token]  # as if the reply had not come
    claims.settled.forget()
    tokens = [int(token) for token in lines.store.run(list_claims_call(lines.keys, "w"))]
    assert len(tokens) == TASKS
    claims.end_unknown(tokens)
    claims.requeue_pending()
    lines.claim("w", room=0, settled=claims.settled.take())
    assert lines.waiting() == [str(unknown.token - 1)]
    tokens = [int(token) for token in lines.store.run(list_claims_call(lines.keys, "w"))]
    assert sorted(tokens) == [claim.token for claim in held]
    lines.check()


def test_a_claim_does_not_start_when_others_may_have_requeued_it(
    lines: Protocol, claims: Claims
) -> None:
    """A claim that has started may start again: its task has met a limit in its body."""
    late, started, *_ = claims.unstarted()
    assert started.start()
    late.start_by = started.start_by = time.time() - 1
    assert not late.start()
    assert late.is_returned
    assert started.start()
    claims.requeue_pending()
    assert lines.waiting() == ["0"]


def test_units_are_given_back_of_claims_whose_tasks_surely_did_not_start(lines: Protocol) -> None:
    """The limit gives one in an hour."""

    def remaining() -> float:
        lines.now = time.time_ns() // 1_000  # as the server's, by which claims are requeued
        return lines.limiter["api"].peek(0).remaining

    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    assert remaining() == 1000
    for number in range(7):
        lines.park(str(number), ["api"], may_run=False)
    for row in lines.claim("w", room=7):
        claims.receive([claims.reserve_tokens(1), 1, 0, 0, row.message, b"", b"api", 1])
    assert remaining() == 993
    waiting, delivered, late, uncertain, revoked, unknown, started = claims.unstarted()
    claims.requeue([waiting])
    assert claims.deliver(delivered)
    claims.requeue([delivered])
    late.start_by = time.time() - 1
    assert not late.start()
    claims.requeue_uncertain([uncertain.token])
    claims.requeue_pending()
    assert remaining() == 997
    revoked.settle()
    lines.claim("w", room=0, settled=claims.settled.take())
    assert remaining() == 998
    assert started.start()
    started.requeue()
    del claims._held[unknown.token]  # as if its end had been reported, and forgotten since
    claims.end_unknown([unknown.token])
    claims.requeue_pending()
    assert remaining() == 998
    assert len(lines.waiting()) == 6


def test_claims_of_two_shards_have_different_names(lines: Protocol) -> None:
    """By its name a park knows a task that has joined, and a task may go to a shard and back."""
    shards = [Claims(lines.store, Keys(prefix), "w", lambda: None) for prefix in ("{a}", "{b}")]
    row = [1, 0, 0, 0, b"", b""]
    assert len({claims.receive(row).claim.name for claims in shards}) == 2


@pytest.mark.usefixtures("claims")
def test_a_damaged_claim_of_a_dead_worker_is_reported_once(
    lines: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    stored = lines.keys.claims("w")
    lines.client.hset(stored, 1, "no claim")
    lines.client.zadd(lines.keys.workers, {"w": 1})
    Claims(lines.store, lines.keys, "other", lambda: None).reclaim("w")
    assert len(lines.waiting()) == TASKS - 1
    [error] = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert error.startswith("1 task of worker w cannot be requeued, and will not run")
    assert stored in error
    assert lines.client.zscore(lines.keys.workers, "w") is None
