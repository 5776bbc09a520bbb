"""What a worker holds under its lease, used from several threads as pools without a loop do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle.store.client import Store
from celery_throttle.store.script import Call
from celery_throttle.worker.claims.claims import Claim, Claims
from tests.protocol import Protocol

TASKS = 40


@pytest.fixture
def claims(lines: Protocol) -> Claims:
    """All tasks of a line, claimed."""
    lines.park("x", ["api"], cost=1000)
    for number in range(TASKS):
        assert lines.park(str(number), ["api"]).outcome == "parked"
    lines.limiter["api"].reset()
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    for row in lines.claim("w", room=TASKS):
        claims.receive([claims.reserve(1), 1, 0, 0, row.message, b""])
        assert row.token == len(claims)
    assert lines.waiting() == []
    return claims


def at_once(*calls: Callable[[], Any], apart: float = 0.0) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
        time.sleep(apart)
    for thread in threads:
        thread.join()


def test_no_token_is_given_twice(lines: Protocol) -> None:
    claims = Claims(lines.store, lines.keys, "w", lambda: None)
    tokens: list[int] = []
    at_once(*[lambda: tokens.extend(claims.reserve(1) for _ in range(5_000))] * 3)
    assert len(set(tokens)) == len(tokens)


def test_all_that_is_given_back_goes_back(
    lines: Protocol, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what comes to it while calls of two threads are on their way."""
    run = Store.run

    def slow(store: Store, call: Call) -> Any:
        time.sleep(0.1)
        return run(store, call)

    monkeypatch.setattr(Store, "run", slow)
    first, second, *_ = claims.booked()
    at_once(
        first.give_back, second.give_back, lambda: claims.doubt(range(3, TASKS + 1)), apart=0.01
    )
    claims.give_back_unsure()
    assert lines.waiting() == sorted(map(str, range(TASKS)))
    lines.check()


def test_a_claim_is_either_started_or_given_back(claims: Claims) -> None:
    """A shutdown in one thread, a start in another: never both, or the task runs twice."""
    held = claims.booked()
    started: list[Claim] = []
    at_once(
        lambda: started.extend(claim for claim in held if claim.start()),
        lambda: claims.give_back(claims.booked(), unless_started=True),
    )
    assert [claim for claim in held if not claim.returned] == started
    assert claims.started() == started


def test_what_has_started_can_still_be_put_back(lines: Protocol, claims: Claims) -> None:
    """A task that rejects its message."""
    first, second, *_ = claims.booked()
    assert first.start()
    first.give_back()
    assert lines.waiting() == ["0"]
    assert second.start()
    claims.give_back([second], unless_started=True)
    assert lines.waiting() == ["0"]
